#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "benchmarks/kernels/against_memcpy.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::bench {
namespace {

void Bench(benchmark::State& state, const KernelTable& kernels,
           std::size_t bytes, DType type) {
  const std::size_t n = bytes / sizeof(float);
  const Buffer weights(DType::kFloat32, n);
  const Buffer momentum_buf(DType::kFloat32, n);
  const Buffer grads(type, n);
  // Weight decay keeps the values in range, however often it is run.
  const SgdArgs args{static_cast<float*>(weights.data()),
                     static_cast<float*>(momentum_buf.data()),
                     grads.data(),
                     type,
                     n,
                     0.1f,
                     0.5f,
                     0.5f,
                     1.0f,
                     false};
  Job job;
  job.moved_bytes = 4 * bytes + n * SizeOf(type);
  job.run = [&] { kernels.sgd(args, nullptr); };
  job.check = [&] {
    const Buffer weights_too(DType::kFloat32, n);
    const Buffer momentum_buf_too(DType::kFloat32, n);
    SgdArgs reference = args;
    reference.weights = static_cast<float*>(weights_too.data());
    reference.momentum_buf = static_cast<float*>(momentum_buf_too.data());
    AllCpuKernels()[0]->sgd(reference, nullptr);
    return std::memcmp(weights.data(), weights_too.data(), bytes) == 0 &&
           std::memcmp(momentum_buf.data(), momentum_buf_too.data(), bytes) ==
               0;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  for (const DType type : {DType::kFloat32, DType::kFloat16}) {
    Register(std::string("sgd_") + ShortName(type),
             [type](benchmark::State& state, const KernelTable& kernels,
                    std::size_t bytes) { Bench(state, kernels, bytes, type); });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
