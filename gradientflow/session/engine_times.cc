#include "gradientflow/session/engine_times.h"

#include <algorithm>
#include <cstddef>

namespace gradientflow {

Result<double> BackwardOnDevice(const StepOnDevice& step) {
  if (step.section_ends.empty()) return 0.0;
  return step.sync->LastReadySeconds(step.step, 0, step.section_ends.size());
}

Result<EngineTimes> TimesOnDevice(const StepOnDevice& step,
                                  const WireTimes& wire, const Event& end) {
  EngineTimes times;
  if (step.section_ends.empty()) return times;
  const Result<double> backward = BackwardOnDevice(step);
  if (!backward.ok()) return backward.status();
  times.backward_seconds = backward.value();
  double wire_free = 0;
  double written = 0;  // When the sections before `next` were ready.
  std::size_t next = 0;
  for (const WireTimes::Exchange& exchange : wire.exchanges()) {
    const auto section = static_cast<std::size_t>(
        std::ranges::lower_bound(step.section_ends, exchange.written_end) -
        step.section_ends.begin());
    if (next <= section) {
      const Result<double> ready =
          step.sync->LastReadySeconds(step.step, next, section + 1);
      if (!ready.ok()) return ready.status();
      written = std::max(written, ready.value());
      next = section + 1;
    }
    const Result<double> ended = step.sync->SecondsOf(step.step, *exchange.end);
    if (!ended.ok()) return ended.status();
    const double begun = std::max(wire_free, written);
    wire_free = ended.value();
    times.hidden_seconds +=
        std::max(0.0, std::min(wire_free, times.backward_seconds) - begun);
  }
  const Result<double> finished = step.sync->SecondsOf(step.step, end);
  if (!finished.ok()) return finished.status();
  times.exposed_seconds =
      std::max(0.0, finished.value() - times.backward_seconds);
  return times;
}

}  // namespace gradientflow
