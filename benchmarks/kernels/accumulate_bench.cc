#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "benchmarks/kernels/against_memcpy.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::bench {
namespace {

struct Case {
  DType dst;
  DType src;
};

void Bench(benchmark::State& state, const KernelTable& kernels,
           std::size_t bytes, Case with) {
  const std::size_t n = bytes / std::max(SizeOf(with.dst), SizeOf(with.src));
  const Buffer dst(with.dst, n);
  const Buffer src(with.src, n);
  std::uint32_t nonfinite = 0;
  // Halving keeps the values in range, however often it is run.
  const AccumulateArgs args{dst.data(),     with.dst, src.data(), with.src,  n,
                            ReduceOp::kSum, 1.0f,     0.5f,       &nonfinite};
  Job job;
  job.moved_bytes = n * (2 * SizeOf(with.dst) + SizeOf(with.src));
  job.run = [&] { kernels.accumulate(args, nullptr); };
  job.check = [&] {
    const Buffer expected(with.dst, n);
    AccumulateArgs reference = args;
    reference.dst = expected.data();
    AllCpuKernels()[0]->accumulate(reference, nullptr);
    return nonfinite == 0 &&
           std::memcmp(expected.data(), dst.data(), n * SizeOf(with.dst)) == 0;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  for (const Case with : {Case{DType::kFloat32, DType::kFloat16},
                          Case{DType::kFloat32, DType::kFloat32},
                          Case{DType::kFloat32, DType::kBFloat16},
                          Case{DType::kFloat16, DType::kFloat16}}) {
    const std::string name = std::string("accumulate_") + ShortName(with.dst) +
                             "_" + ShortName(with.src);
    Register(name,
             [with](benchmark::State& state, const KernelTable& kernels,
                    std::size_t bytes) { Bench(state, kernels, bytes, with); });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
