#include "gradientflow/session/engine_times.h"

#include <algorithm>
#include <vector>

namespace gradientflow {
namespace {

// Returns, for each section, when it and all sections before it were ready. An
// exchange that ends with the section waits for that.
Result<std::vector<double>> WrittenSeconds(const StepOnDevice& step) {
  std::vector<double> written;
  double latest = 0;
  for (std::size_t k = 0; k < step.section_ends.size(); ++k) {
    const Result<double> ready = step.sync->ReadySeconds(step.step, k);
    if (!ready.ok()) return ready.status();
    latest = std::max(latest, ready.value());
    written.push_back(latest);
  }
  return written;
}

}  // namespace

Result<double> BackwardOnDevice(const StepOnDevice& step) {
  const Result<std::vector<double>> written = WrittenSeconds(step);
  if (!written.ok()) return written.status();
  return written.value().empty() ? 0.0 : written.value().back();
}

Result<EngineTimes> TimesOnDevice(const StepOnDevice& step,
                                  const WireTimes& wire, const Event& end) {
  EngineTimes times;
  const Result<std::vector<double>> written = WrittenSeconds(step);
  if (!written.ok()) return written.status();
  if (written.value().empty()) return times;
  times.backward_seconds = written.value().back();
  double wire_free = 0;
  for (const WireTimes::Exchange& exchange : wire.exchanges()) {
    const auto section = static_cast<std::size_t>(
        std::ranges::lower_bound(step.section_ends, exchange.written_end) -
        step.section_ends.begin());
    const Result<double> ended = step.sync->SecondsOf(step.step, *exchange.end);
    if (!ended.ok()) return ended.status();
    const double begun = std::max(wire_free, written.value()[section]);
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
