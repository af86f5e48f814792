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
//   "passes"  a step whose gradients are all ready at once, so that nothing is
//             hidden: from the first GradientReady() to the end of
//             FinishStep(), by each number of compute threads in turn. In every
//             step all of them must leave the same bits. Answer: for each
//             number, the median times in ms: on the clock, and of all cores;
//             and what a bare loop takes (bare_passes.h) that moves only the
//             bytes (in MB) that such a step cannot do without.
//
// Job: {"what": one of these, "model": a plan, "settings", "steps"}, for
// "passes" also {"threads": [numbers]}.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/engine/bare_passes.h"
#include "benchmarks/median.h"
#include "benchmarks/rank.h"
#include "benchmarks/scaling/model.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "kernels/kernels.h"

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
    GF_RETURN_IF_ERROR(session.ZeroGradients());
  }
  const double pool_mb = static_cast<double>(pool.bytes) / 1e6;
  return Json{{"pool_mb", pool_mb},
              {"beyond_mb", StatusMb("VmHWM") - before_mb - pool_mb}};
}

// Random gradients, neither large nor small, in float32 or float16.
void Fill(DType dtype, std::uint32_t seed, BufferView pool) {
  if (dtype == DType::kFloat32) {
    auto* gradients = reinterpret_cast<float*>(pool.data);
    for (std::size_t i = 0; i < pool.bytes / sizeof(float); ++i) {
      seed = seed * 1664525U + 1013904223U;
      gradients[i] =
          static_cast<float>(static_cast<std::int32_t>(seed)) * 1e-9F;
    }
    return;
  }
  auto* bits = reinterpret_cast<std::uint16_t*>(pool.data);
  for (std::size_t i = 0; i < pool.bytes / sizeof(*bits); ++i) {
    seed = seed * 1664525U + 1013904223U;
    bits[i] = static_cast<std::uint16_t>(0x3000 | (seed >> 16 & 0x83FF));
  }
}

// Does what backward does: writes gradients to the pool, or adds them.
Status Backward(const GradientSession& session, std::uint32_t seed) {
  const DType dtype = session.options().pool_dtype;
  const BufferView pool = session.pool();
  if (!session.options().accumulate) {
    Fill(dtype, seed, pool);
    return Status();
  }
  std::vector<std::byte> gradients(pool.bytes);
  Fill(dtype, seed, {gradients.data(), pool.bytes, {}});
  kernels::AccumulateArgs args = {};
  args.dst = pool.data;
  args.dst_type = args.src_type = dtype;
  args.src = gradients.data();
  args.n = pool.bytes / SizeOf(dtype);
  args.op = kernels::ReduceOp::kSum;
  args.dst_scale = args.out_scale = 1;
  if (kernels::CpuKernels().accumulate(args, nullptr) == 0) return Status();
  return Status(StatusCode::kInternal, "accumulate failed");
}

double CpuMilliseconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 +
         static_cast<double>(time.tv_nsec) * 1e-6;
}

// One number of threads.
struct Passes {
  std::unique_ptr<GradientSession> session;
  std::vector<double> clock_ms;
  std::vector<double> cpu_ms;

  Status Step(std::uint32_t seed) {
    GF_RETURN_IF_ERROR(session->ZeroGradients());
    GF_RETURN_IF_ERROR(Backward(*session, seed));
    const SteadyClock clock;
    const Clock::Time begin = clock.Now();
    const double cpu_begin = CpuMilliseconds();
    for (std::size_t i = session->tensors(); i-- > 0;) {
      session->GradientReady(i);
    }
    GF_RETURN_IF_ERROR(session->FinishStep().status());
    clock_ms.push_back(Seconds(clock.Now() - begin) * 1e3);
    cpu_ms.push_back(CpuMilliseconds() - cpu_begin);
    return Status();
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

Result<Json> TimePasses(const Json& job, const Options& options,
                        const std::vector<TensorSpec>& specs) {
  constexpr int kWarmUp = 8;  // Untimed, until every residual is in use.
  std::vector<Passes> all;
  for (const int threads : job.at("threads")) {
    Json settings = job.at("settings");
    settings["compute_threads"] = std::to_string(threads);
    auto session = OpenSession(options, settings, specs);
    if (!session.ok()) return session.status();
    all.push_back({std::move(session).value(), {}, {}});
  }
  const int steps = job.at("steps");
  for (int step = 0; step < kWarmUp + steps; ++step) {
    const BufferView first = all.front().session->pool();
    for (Passes& passes : all) {
      GF_RETURN_IF_ERROR(passes.Step(static_cast<std::uint32_t>(step)));
      if (std::memcmp(passes.session->pool().data, first.data, first.bytes) !=
          0) {
        return Status(
            StatusCode::kDataLoss,
            StrCat("step ", step, ": other bits with ",
                   passes.session->options().compute_threads, " threads"));
      }
    }
  }
  const Options& in_force = all.front().session->options();
  const BarePasses bare =
      LeastPasses(in_force, all.front().session->pool().bytes /
                                SizeOf(in_force.pool_dtype));
  Json answer = Json::array();
  for (Passes& passes : all) {
    passes.clock_ms.erase(passes.clock_ms.begin(),
                          passes.clock_ms.begin() + kWarmUp);
    passes.cpu_ms.erase(passes.cpu_ms.begin(), passes.cpu_ms.begin() + kWarmUp);
    answer.push_back({{"threads", passes.session->options().compute_threads},
                      {"step_ms", Median(passes.clock_ms)},
                      {"cpu_ms", Median(passes.cpu_ms)}});
  }
  all.clear();  // Helpers that busy-wait would slow the bare loop down.
  for (Json& row : answer) {
    const Result<double> time = TimeBarePasses(bare, row.at("threads"), steps);
    if (!time.ok()) return time.status();
    row["bare_ms"] = time.value();
    row["bare_mb"] = static_cast<double>(BytesOf(bare)) / 1e6;
  }
  return answer;
}

Result<Json> RankMain(const Json& job, const Options& options) {
  const auto specs = ModelOf(job.at("model")).Specs();
  const int steps = job.at("steps");
  if (job.at("what") == "passes") return TimePasses(job, options, specs);
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
