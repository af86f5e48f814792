#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "benchmarks/kernels/against_memcpy.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::bench {
namespace {

// Two pools summed and the mean stored to both, as two ranks with shared
// memory do it: in place.
void Bench(benchmark::State& state, const KernelTable& kernels,
           std::size_t bytes) {
  const std::size_t n = bytes / sizeof(float);
  const Buffer first(DType::kFloat32, n);
  const Buffer second(DType::kFloat32, n);
  const void* srcs[] = {first.data(), second.data()};
  void* dsts[] = {first.data(), second.data()};
  std::uint32_t nonfinite = 0;
  const ReduceManyArgs args{srcs,
                            2,
                            -1,
                            DType::kFloat32,
                            dsts,
                            2,
                            DType::kFloat32,
                            DType::kFloat32,
                            n,
                            ReduceOp::kSum,
                            0.5f,
                            &nonfinite};
  Job job;
  job.moved_bytes = 4 * bytes;
  job.run = [&] { kernels.reduce_many(args, nullptr); };
  // Both held the same values, so the mean is what they held before.
  job.check = [&] {
    const Buffer expected(DType::kFloat32, n);
    return nonfinite == 0 &&
           std::memcmp(first.data(), expected.data(), bytes) == 0 &&
           std::memcmp(second.data(), expected.data(), bytes) == 0;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  Register("reduce_many_2_to_2_f32", Bench);
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
