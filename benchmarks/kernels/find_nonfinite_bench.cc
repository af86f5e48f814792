#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "benchmarks/kernels/against_memcpy.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::bench {
namespace {

void Bench(benchmark::State& state, const KernelTable& kernels,
           std::size_t bytes, DType type) {
  const std::size_t n = bytes / SizeOf(type);
  const Buffer src(type, n);
  std::uint32_t nonfinite = 0;
  const FindNonfiniteArgs args{src.data(), type, n, &nonfinite};
  Job job;
  job.moved_bytes = bytes;
  job.run = [&] { kernels.find_nonfinite(args, nullptr); };
  job.check = [&] { return nonfinite == 0; };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    Register(std::string("find_nonfinite_") + ShortName(type),
             [type](benchmark::State& state, const KernelTable& kernels,
                    std::size_t bytes) { Bench(state, kernels, bytes, type); });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
