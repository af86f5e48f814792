// One rank that measures what the engine costs a training process, for the
// tensors of a model:
//
//   "ready"   the time of each GradientReady() on the caller's thread, less the
//             time of reading the clock. It includes waking the progress thread
//             where that is due. Answer: microseconds of each.
//   "memory"  the peak of resident memory beyond that of the process before it
//             opened the session, and beyond the pool. Answer: both in MB
//             (1e6).
//   "passes"  a step whose gradients are all ready at once, so that nothing is
//             hidden: from the first GradientReady() to the end of
//             FinishStep(), by each number of compute threads in turn. In every
//             step all of them must leave the same bits. Answer: for each
//             number, the median times in ms: on the clock, and of all cores;
//             and what a bare loop takes (bare_passes.h) that moves only the
//             bytes (in MB) that such a step cannot do without.
//
//   "profile" a step whose gradients are all ready at once, with nobody to send
//             them to, in turn without and with a profile: the steps of a round
//             in a session of each kind. Answer: by kind, the microseconds of a
//             step in each round, and what closing takes, which writes the
//             file, in ms.
//
// Job: {"what": one of these, "model": a plan, "settings", "steps"}, for
// "passes" also {"threads": [numbers]}, for "profile" {"rounds", "file"}.
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/engine/bare_passes.h"
#include "benchmarks/lib/rank.h"
#include "benchmarks/lib/turns.h"
#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/model.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

double Microseconds(Clock::Time time) { return Seconds(time) * 1e6; }

double ClockMicroseconds(const Clock& clock) {
  std::vector<double> times;
  for (int i = 0; i < 1001; ++i) {
    const Clock::Time begin = clock.Now();
    times.push_back(Microseconds(clock.Now() - begin));
  }
  return Median(times);
}

void AllReady(GradientSession& session) {
  for (std::size_t i = session.tensors(); i-- > 0;) session.GradientReady(i);
}

Json TimeReady(GradientSession& session, int steps) {
  const SteadyClock clock;
  const double overhead = ClockMicroseconds(clock);
  std::vector<double> times;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = session.tensors(); i-- > 0;) {
      const Clock::Time begin = clock.Now();
      session.GradientReady(i);
      times.push_back(Microseconds(clock.Now() - begin) - overhead);
    }
    Must(session.FinishStep());
  }
  return times;
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

Json MeasureMemory(GradientSession& session, const Gradients& gradients,
                   int steps, double before_mb) {
  const BufferView pool = session.pool();
  for (int step = 0; step < steps; ++step) {
    gradients.Fill(session.rank(), static_cast<std::uint64_t>(step), pool);
    AllReady(session);
    Must(session.FinishStep());
    Must(session.ZeroGradients());
  }
  const double pool_mb = static_cast<double>(pool.bytes) / 1e6;
  return {{"pool_mb", pool_mb},
          {"beyond_mb", StatusMb("VmHWM") - before_mb - pool_mb}};
}

// The processor time of all threads of this process.
double CpuMilliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// One number of threads.
struct Passes {
  std::unique_ptr<GradientSession> session;
  std::vector<double> clock_ms;
  std::vector<double> cpu_ms;

  // Does what backward does, writes gradients to the pool or adds them, and
  // then times the rest of the step.
  void Step(const Gradients& gradients, std::uint64_t step, bool timed) {
    Must(session->ZeroGradients());
    gradients.Fill(0, step, session->pool(), session->options().accumulate);
    const SteadyClock clock;
    const Clock::Time begin = clock.Now();
    const double cpu_begin = CpuMilliseconds();
    AllReady(*session);
    Must(session->FinishStep());
    if (!timed) return;
    clock_ms.push_back(Seconds(clock.Now() - begin) * 1e3);
    cpu_ms.push_back(CpuMilliseconds() - cpu_begin);
  }
};

// The bytes that no step of one rank can do without. Each gradient is read, for
// its norm. A residual apart is read and written. What is kept decays or is
// zeroed in the pool, if that is set, and what is sent is rounded or summed
// there.
BarePasses LeastPasses(const Options& options, std::size_t elements) {
  const bool apart = !options.accumulate;
  const bool plain = options.residual == ResidualMode::kPlain;
  const auto kept = static_cast<std::size_t>(static_cast<double>(elements) *
                                             double{options.sparsity});
  BarePasses passes;
  passes.element_bytes = SizeOf(options.pool_dtype);
  passes.kept = {apart, apart == plain, kept};
  passes.sent = {apart, apart || options.pool_dtype != options.wire_dtype,
                 elements - kept};
  return passes;
}

Json TimePasses(const Json& job, const Options& options,
                const std::vector<TensorSpec>& specs) {
  constexpr int kWarmUp = 8;  // Untimed, until every residual is in use.
  std::vector<Passes> all;
  for (const int threads : job.at("threads")) {
    Json settings = job.at("settings");
    settings["compute_threads"] = std::to_string(threads);
    all.push_back({OpenSession(options, settings, specs), {}, {}});
  }
  const Options in_force = all.front().session->options();
  const BufferView first = all.front().session->pool();
  const Gradients gradients(in_force.pool_dtype);
  const int steps = job.at("steps");
  for (int step = 0; step < kWarmUp + steps; ++step) {
    for (Passes& passes : all) {
      passes.Step(gradients, static_cast<std::uint64_t>(step), step >= kWarmUp);
      if (std::memcmp(passes.session->pool().data, first.data, first.bytes) ==
          0) {
        continue;
      }
      throw std::runtime_error(StrCat("step ", step, ": other bits with ",
                                      passes.session->options().compute_threads,
                                      " threads"));
    }
  }
  const BarePasses bare =
      LeastPasses(in_force, first.bytes / SizeOf(in_force.pool_dtype));
  Json answer = Json::array();
  for (const Passes& passes : all) {
    answer.push_back({{"threads", passes.session->options().compute_threads},
                      {"step_ms", Median(passes.clock_ms)},
                      {"cpu_ms", Median(passes.cpu_ms)}});
  }
  all.clear();  // Helpers that busy-wait would slow the bare loop down.
  for (Json& row : answer) {
    row["bare_ms"] = TimeBarePasses(bare, row.at("threads"), steps);
    row["bare_mb"] = static_cast<double>(BytesOf(bare)) / 1e6;
  }
  return answer;
}

Json TimeProfile(const Json& job, const Options& options,
                 const std::vector<TensorSpec>& specs) {
  const SteadyClock clock;
  const int steps = job.at("steps");
  std::vector<std::unique_ptr<GradientSession>> sessions;
  std::vector<std::function<double()>> sides;
  for (const std::string& file :
       {std::string(), job.at("file").get<std::string>()}) {
    Json settings = job.at("settings");
    settings["profile"] = file;
    sessions.push_back(OpenSession(options, settings, specs));
    GradientSession& session = *sessions.back();
    sides.push_back([&session, &clock, steps] {
      const Clock::Time begin = clock.Now();
      for (int step = 0; step < steps; ++step) {
        AllReady(session);
        Must(session.FinishStep());
      }
      return Microseconds(clock.Now() - begin) / steps;
    });
  }
  Json answer;
  answer["step_us"] = TakeTurns(job.at("rounds"), sides);
  for (auto& session : sessions) {
    const Clock::Time begin = clock.Now();
    session.reset();
    answer["closing_ms"].push_back(Microseconds(clock.Now() - begin) / 1e3);
  }
  return answer;
}

}  // namespace

Json RankMain(const Json& job, const Options& options) {
  const auto specs = job.at("model").get<Model>().Specs();
  const int steps = job.at("steps");
  if (job.at("what") == "passes") return TimePasses(job, options, specs);
  if (job.at("what") == "profile") return TimeProfile(job, options, specs);
  const Gradients gradients(DType::kFloat32);
  const double before_mb = StatusMb("VmRSS");
  const auto session = OpenSession(options, job.at("settings"), specs);
  if (job.at("what") == "ready") return TimeReady(*session, steps);
  return MeasureMemory(*session, gradients, steps, before_mb);
}

}  // namespace gradientflow::benchmarks
