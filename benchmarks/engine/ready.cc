#include "benchmarks/engine/ready.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "benchmarks/ranks.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {
namespace {

double ClockMicroseconds(const Clock& clock) {
  std::vector<double> times;
  for (int i = 0; i < 1001; ++i) {
    const Clock::Time begin = clock.Now();
    times.push_back(Seconds(clock.Now() - begin) * 1e6);
  }
  std::nth_element(times.begin(), times.begin() + 500, times.end());
  return times[500];
}

Result<std::string> TimeRank(const Model& model, const Options& options,
                             int steps) {
  std::vector<TensorSpec> specs;
  for (const ModelTensor& tensor : model.tensors) {
    specs.push_back({tensor.name, tensor.elements});
  }
  auto session = GradientSession::Open(options, specs);
  if (!session.ok()) return session.status();
  const SteadyClock clock;
  const double overhead = ClockMicroseconds(clock);
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = specs.size(); i-- > 0;) {
      const Clock::Time begin = clock.Now();
      session.value()->GradientReady(i);
      times.push_back(Seconds(clock.Now() - begin) * 1e6 - overhead);
    }
    const auto stats = session.value()->FinishStep();
    if (!stats.ok()) return stats.status();
  }
  std::sort(times.begin(), times.end());
  return StrCat(times[times.size() / 2], " ", times[times.size() * 99 / 100],
                " ", times.back());
}

}  // namespace

Result<ReadyTimes> MeasureReady(const Model& model, int steps) {
  const Result<std::string> rendezvous = LocalRendezvous();
  if (!rendezvous.ok()) return rendezvous.status();
  const auto texts = RunRanks(2, [&](int rank) {
    Options options;
    options.rank = rank;
    options.size = 2;
    options.rendezvous = rendezvous.value();
    options.fabric = "tcp";
    return TimeRank(model, options, steps);
  });
  if (!texts.ok()) return texts.status();
  ReadyTimes times;
  std::istringstream(texts.value()[0]) >> times.median_us >> times.p99_us >>
      times.max_us;
  return times;
}

}  // namespace gradientflow::benchmarks
