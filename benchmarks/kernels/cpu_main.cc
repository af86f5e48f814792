// The element kernels on every table of this CPU, as bytes read plus bytes
// written per second, beside a memcpy() of as many elements in the same loop.
// Results are compared with those of the scalar table before anything is timed.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "benchmarks/kernels/kernel_case.h"
#include "benchmarks/median.h"
#include "gradientflow/base/clock.h"

namespace gradientflow::benchmarks {
namespace {

// The sizes at which every kernel is measured, as bytes of float32: one segment
// of the pipeline, which fits the caches, and a size that does not.
constexpr std::size_t kSegmentBytes = std::size_t{256} << 10;
constexpr std::size_t kStreamBytes = std::size_t{64} << 20;

// Memory with pages of its own, huge ones if the kernel has them.
class Pages {
 public:
  explicit Pages(const std::vector<std::byte>& contents)
      : bytes_(contents.size() + 1),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) std::abort();
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memcpy(data_, contents.data(), contents.size());
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  const std::size_t bytes_;
  void* const data_;
};

Status Verify(const KernelCase& which, const KernelCase::Memory& memory) {
  const auto expected = RunOnHost(
      which, {*kernels::AllCpuKernels()[0], kernels::CpuChunkKernels(),
              kernels::AllCpuKernels()[0]});
  if (!expected.ok()) return expected.status();
  for (std::size_t b = 0; b < which.buffers.size(); ++b) {
    GF_RETURN_IF_ERROR(
        CompareBuffer(which, b, expected.value()[b].data(), memory[b]));
  }
  return Status();
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
  std::vector<std::unique_ptr<Pages>> owned;
  KernelCase::Memory memory;
  for (const CaseBuffer& buffer : which.buffers) {
    owned.push_back(std::make_unique<Pages>(buffer.contents));
    memory.push_back(owned.back()->data());
  }
  const auto job = [&] { which.launch(tables, memory, nullptr); };
  job();
  const Status right = Verify(which, memory);
  if (!right.ok()) {
    state.SkipWithError(right.ToString().c_str());
    return;
  }
  const Pages from(Normal(DType::kFloat32, memcpy_bytes / 4, 0).contents);
  const Pages to(Zeros(memcpy_bytes).contents);
  const auto copy = [&] {
    std::memcpy(to.data(), from.data(), memcpy_bytes);
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
void Register(const MakeCase& make, std::size_t bytes) {
  for (auto* table = kernels::AllCpuKernels() + 1; *table != nullptr; ++table) {
    const KernelTables tables = {**table, kernels::CpuChunkKernels(), *table};
    const std::string name = make().name + "/" + (*table)->name + "/" +
                             std::to_string(bytes >> 10) + "KiB";
    benchmark::RegisterBenchmark(
        name.c_str(),
        [=](benchmark::State& state) { RunCase(state, make(), tables, bytes); })
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
      for (const MakeCase& make : cases) Register(make, bytes);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
