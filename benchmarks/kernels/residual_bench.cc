#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>

#include "benchmarks/kernels/against_memcpy.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::bench {
namespace {

struct Case {
  DType type;
  bool send;
};

void Bench(benchmark::State& state, const KernelTable& kernels,
           std::size_t bytes, Case with) {
  const std::size_t n = bytes / sizeof(float);
  const Buffer grads(with.type, n);
  const Buffer residual(DType::kFloat32, n);
  float norm = 0;
  const ResidualArgs args{grads.data(),
                          with.type,
                          static_cast<float*>(residual.data()),
                          n,
                          with.send,
                          false,
                          0.5f,
                          &norm};
  Job job;
  const std::size_t grad_bytes = n * SizeOf(with.type);
  job.moved_bytes = 2 * bytes + (with.send ? 2 : 1) * grad_bytes;
  job.run = [&] { kernels.residual(args, nullptr); };
  job.check = [&] {
    const Buffer grads_too(with.type, n);
    const Buffer residual_too(DType::kFloat32, n);
    float norm_too = 0;
    ResidualArgs reference = args;
    reference.grads = grads_too.data();
    reference.residual = static_cast<float*>(residual_too.data());
    reference.norm = &norm_too;
    AllCpuKernels()[0]->residual(reference, nullptr);
    return std::memcmp(grads.data(), grads_too.data(), grad_bytes) == 0 &&
           std::memcmp(residual.data(), residual_too.data(), bytes) == 0 &&
           std::fabs(norm - norm_too) <= 1e-4f * norm_too;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  for (const Case with :
       {Case{DType::kFloat32, true}, Case{DType::kFloat32, false},
        Case{DType::kFloat16, true}, Case{DType::kFloat16, false}}) {
    const std::string name = std::string("residual_") +
                             (with.send ? "send_" : "keep_") +
                             ShortName(with.type);
    Register(name,
             [with](benchmark::State& state, const KernelTable& kernels,
                    std::size_t bytes) { Bench(state, kernels, bytes, with); });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
