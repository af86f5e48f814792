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
  float norm = 0;
  L1NormArgs args{src.data(), type, n, 1.0f, &norm};
  Job job;
  job.moved_bytes = bytes;
  job.run = [&] { kernels.l1_norm(args, nullptr); };
  job.check = [&] {
    float expected = 0;
    L1NormArgs reference = args;
    reference.norm = &expected;
    AllCpuKernels()[0]->l1_norm(reference, nullptr);
    return std::fabs(norm - expected) <= 1e-4f * expected;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    Register(std::string("l1_norm_") + ShortName(type),
             [type](benchmark::State& state, const KernelTable& kernels,
                    std::size_t bytes) { Bench(state, kernels, bytes, type); });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
