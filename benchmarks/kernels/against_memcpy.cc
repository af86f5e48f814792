#include "benchmarks/kernels/against_memcpy.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace gradientflow::kernels::bench {
namespace {

double Seconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - start;
  return taken.count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<long>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Buffer::Buffer(DType type, std::size_t elements)
    : bytes_(std::max<std::size_t>(elements * SizeOf(type), 1)),
      data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  if (data_ == MAP_FAILED) std::abort();
  madvise(data_, bytes_, MADV_HUGEPAGE);
  // 0.5 to 1 in each of the gradients' formats, with a few different mantissas;
  // whole numbers in others.
  for (std::size_t i = 0; i < elements; ++i) {
    const auto step = static_cast<std::uint32_t>(i % 61);
    if (type == DType::kFloat64) {
      static_cast<double*>(data_)[i] = step;
    } else if (!IsGradientType(type)) {
      const std::uint64_t whole = step;  // Little-endian, as all targets are.
      std::memcpy(static_cast<std::byte*>(data_) + i * SizeOf(type), &whole,
                  SizeOf(type));
    } else if (type == DType::kFloat32) {
      static_cast<std::uint32_t*>(data_)[i] = 0x3F000000 + (step << 12);
    } else {
      const std::uint32_t half = type == DType::kFloat16 ? 0x3800 : 0x3F00;
      static_cast<std::uint16_t*>(data_)[i] =
          static_cast<std::uint16_t>(half + step);
    }
  }
}

Buffer::~Buffer() { munmap(data_, bytes_); }

void AgainstMemcpy(benchmark::State& state, const Job& job,
                   std::size_t memcpy_bytes) {
  job.run();
  if (!job.check()) {
    state.SkipWithError("wrong result");
    return;
  }
  const Buffer from(DType::kFloat32, memcpy_bytes / sizeof(float));
  const Buffer to(DType::kFloat32, memcpy_bytes / sizeof(float));
  const std::function<void()> copy = [&] {
    std::memcpy(to.data(), from.data(), memcpy_bytes);
    benchmark::ClobberMemory();
  };
  // Small buffers are gone over several times, so that a turn is longer than
  // the clock's grain and finds its own buffers in cache.
  const int repeats = memcpy_bytes < (4 << 20) ? 16 : 1;
  const auto repeated = [repeats](const std::function<void()>& f) {
    f();
    return Seconds([&] {
             for (int r = 0; r < repeats; ++r) f();
           }) /
           repeats;
  };
  const auto timed = [&](const std::function<void()>& f) {
    return repeats > 1 ? repeated(f) : Seconds(f);
  };
  std::vector<double> job_seconds;
  std::vector<double> copy_seconds;
  for (auto _ : state) {
    copy_seconds.push_back(timed(copy));
    job_seconds.push_back(timed(job.run));
    state.SetIterationTime(job_seconds.back());
  }
  const double job_rate =
      static_cast<double>(job.moved_bytes) / Median(job_seconds);
  const double copy_rate =
      2 * static_cast<double>(memcpy_bytes) / Median(copy_seconds);
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(job.moved_bytes));
  state.counters["vs_memcpy"] = job_rate / copy_rate;
  state.counters["memcpy_GBps"] = copy_rate / 1e9;
}

void Register(const std::string& name, const MakeBench& bench) {
  for (const KernelTable* const* table = AllCpuKernels() + 1; *table != nullptr;
       ++table) {
    for (const std::size_t bytes : {kSegmentBytes, kStreamBytes}) {
      const std::string full = name + "/" + (*table)->name + "/" +
                               std::to_string(bytes >> 10) + "KiB";
      const KernelTable& kernels = **table;
      benchmark::RegisterBenchmark(
          full.c_str(),
          [bench, &kernels, bytes](benchmark::State& state) {
            bench(state, kernels, bytes);
          })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->Iterations(bytes == kSegmentBytes ? 301 : 31);
    }
  }
}

const char* ShortName(DType type) {
  switch (type) {
    case DType::kFloat32:
      return "f32";
    case DType::kFloat16:
      return "f16";
    case DType::kBFloat16:
      return "bf16";
    default:
      return "other";
  }
}

}  // namespace gradientflow::kernels::bench
