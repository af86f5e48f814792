// One rank that measures what the engine costs a training process, for the
// tensors of a model:
//
//   "ready"   the time of each GradientReady() on the caller's thread, less the
//             time of reading the clock. It includes waking the progress thread
//             where that is due. Answer: microseconds at the median, at 99 %
//             and at most.
//   "memory"  the peak of resident memory beyond that of the process before it
//             opened the session, and beyond the pool. Answer: both in MB
//             (1e6).
//
// Job: {"what": "ready" or "memory", "model": a plan, "settings", "steps"}.
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/rank.h"
#include "benchmarks/scaling/model.h"
#include "gradientflow/base/clock.h"

namespace gradientflow::benchmarks {
namespace {

double Microseconds(Clock::Time time) { return Seconds(time) * 1e6; }

// The value at `share` (0 to 1) of the sorted values.
double Quantile(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(share * last)];
}

double ClockMicroseconds(const Clock& clock) {
  std::vector<double> times;
  for (int i = 0; i < 1001; ++i) {
    const Clock::Time begin = clock.Now();
    times.push_back(Microseconds(clock.Now() - begin));
  }
  return Quantile(times, 0.5);
}

Result<Json> TimeReady(GradientSession& session, int steps) {
  const SteadyClock clock;
  const double overhead = ClockMicroseconds(clock);
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = session.tensors(); i-- > 0;) {
      const Clock::Time begin = clock.Now();
      session.GradientReady(i);
      times.push_back(Microseconds(clock.Now() - begin) - overhead);
    }
    GF_RETURN_IF_ERROR(session.FinishStep().status());
  }
  return Json{{"median_us", Quantile(times, 0.5)},
              {"p99_us", Quantile(times, 0.99)},
              {"max_us", times.back()}};
}

// The value of a line "name: 123 kB" of /proc/self/status, in MB.
double StatusMb(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    return std::stod(line.substr(name.size() + 1)) * 1024 / 1e6;
  }
  return 0;
}

Result<Json> MeasureMemory(GradientSession& session, int steps,
                           double before_mb) {
  const BufferView pool = session.pool();
  for (int step = 0; step < steps; ++step) {
    auto* gradients = reinterpret_cast<float*>(pool.data);
    for (std::size_t i = 0; i < pool.bytes / sizeof(float); ++i) {
      gradients[i] = static_cast<float>((i * 2654435761U) % 1009) / 1009.0F;
    }
    for (std::size_t i = session.tensors(); i-- > 0;) session.GradientReady(i);
    GF_RETURN_IF_ERROR(session.FinishStep().status());
  }
  const double pool_mb = static_cast<double>(pool.bytes) / 1e6;
  return Json{{"pool_mb", pool_mb},
              {"beyond_mb", StatusMb("VmHWM") - before_mb - pool_mb}};
}

Result<Json> RankMain(const Json& job, const Options& options) {
  const auto specs = ModelOf(job.at("model")).Specs();
  const int steps = job.at("steps");
  const double before_mb = StatusMb("VmRSS");
  auto session = OpenSession(options, job.at("settings"), specs);
  if (!session.ok()) return session.status();
  if (job.at("what") == "ready") return TimeReady(*session.value(), steps);
  return MeasureMemory(*session.value(), steps, before_mb);
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  return RunRank(argc, argv, &RankMain);
}
