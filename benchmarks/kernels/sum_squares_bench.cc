#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <string>

#include "benchmarks/kernels/against_memcpy.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::bench {
namespace {

void Bench(benchmark::State& state, const KernelTable& kernels,
           std::size_t bytes, DType type) {
  const std::size_t n = bytes / SizeOf(type);
  const Buffer src(type, n);
  double sum = 0;
  SumSquaresArgs args{src.data(), type, n, &sum};
  Job job;
  job.moved_bytes = bytes;
  job.run = [&] { kernels.sum_squares(args, nullptr); };
  job.check = [&] {
    double expected = 0;
    SumSquaresArgs reference = args;
    reference.sum = &expected;
    AllCpuKernels()[0]->sum_squares(reference, nullptr);
    return std::fabs(sum - expected) <= 1e-9 * expected;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    Register(std::string("sum_squares_") + ShortName(type),
             [type](benchmark::State& state, const KernelTable& kernels,
                    std::size_t bytes) { Bench(state, kernels, bytes, type); });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
