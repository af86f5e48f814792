// The element kernels on every table of this CPU, as bytes read plus bytes
// written per second, beside a memcpy() of as many elements in the same loop.
// Results are compared with those of the scalar table before anything is timed.
#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/kernels/kernel_case.h"
#include "benchmarks/lib/turns.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/pages.h"

namespace gradientflow::benchmarks {
namespace {

// The sizes at which every kernel is measured, as bytes of float32: one segment
// of the pipeline, which fits the caches, and a size that does not.
constexpr std::size_t kSegmentBytes = std::size_t{256} << 10;
constexpr std::size_t kStreamBytes = std::size_t{64} << 20;

// Memory with pages of its own, huge ones if the kernel has them.
Pages<std::byte> Load(const CaseBuffer& buffer, const Memory& memory = {}) {
  auto pages = NewPages<std::byte>(buffer.bytes);
  if (pages == nullptr) throw std::bad_alloc();
  if (buffer.fill) buffer.fill(pages.get(), memory);
  return pages;
}

// Work on small buffers is repeated, so that a turn is longer than the
// resolution of the clock and finds its own buffers in cache.
double TimeTurn(int repeats, const std::function<void()>& work) {
  if (repeats > 1) work();
  const Clock::Time begin = SteadyClock().Now();
  for (int i = 0; i < repeats; ++i) work();
  return Seconds(SteadyClock().Now() - begin) / repeats;
}

void RunCase(benchmark::State& state, const KernelCase& which,
             const KernelTables& tables, std::size_t memcpy_bytes) {
  std::vector<Pages<std::byte>> owned;
  Memory memory;
  for (const CaseBuffer& buffer : which.buffers) {
    owned.push_back(Load(buffer, memory));
    memory.push_back(owned.back().get());
  }
  const auto job = [&] { which.launch({tables, memory, nullptr}); };
  job();
  const auto* const scalar = kernels::AllCpuKernels()[0];
  try {
    Verify(which, {*scalar, kernels::CpuChunkKernels(), scalar},
           [&](std::size_t b) { return memory[b]; });
  } catch (const std::runtime_error& error) {
    state.SkipWithError(error.what());
    return;
  }
  const auto from = Load(Normal(DType::kFloat32, memcpy_bytes / 4, 0));
  const auto to = Load(Normal(DType::kFloat32, memcpy_bytes / 4, 0));
  const auto copy = [&] {
    std::memcpy(to.get(), from.get(), memcpy_bytes);
    benchmark::ClobberMemory();
  };
  const int repeats = memcpy_bytes == kSegmentBytes ? 16 : 1;
  std::vector<double> seconds;
  std::vector<double> copy_seconds;
  for (auto _ : state) {
    copy_seconds.push_back(TimeTurn(repeats, copy));
    seconds.push_back(TimeTurn(repeats, job));
    state.SetIterationTime(seconds.back());
  }
  const double copy_rate =
      2 * static_cast<double>(memcpy_bytes) / Median(copy_seconds);
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(which.bytes));
  state.counters["vs_memcpy"] = which.bytes / Median(seconds) / copy_rate;
  state.counters["memcpy_GBps"] = copy_rate / 1e9;
}

// Registers a case as "<kernel>/<table>/<KiB>".
void Register(const KernelCase& which, std::size_t bytes) {
  for (auto* table = kernels::AllCpuKernels() + 1; *table != nullptr; ++table) {
    const KernelTables tables = {**table, kernels::CpuChunkKernels(), *table};
    const std::string name = which.name + "/" + (*table)->name + "/" +
                             std::to_string(bytes >> 10) + "KiB";
    benchmark::RegisterBenchmark(
        name.c_str(),
        [=](benchmark::State& state) { RunCase(state, which, tables, bytes); })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(bytes == kSegmentBytes ? 301 : 31);
  }
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (const std::size_t bytes : {kSegmentBytes, kStreamBytes}) {
    for (auto& cases : {ElementCases(bytes / 4), HostCases(bytes / 4)}) {
      for (const KernelCase& which : cases) Register(which, bytes);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
