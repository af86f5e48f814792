#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "benchmarks/kernels/against_memcpy.h"
#include "kernels/kernels.h"

namespace gradientflow::kernels::bench {
namespace {

// Two buffers reduced and the result stored to both, as two ranks with shared
// memory do it: in place. Both hold the same values, and the result is those.
void Bench(benchmark::State& state, const KernelTable& kernels, DType type,
           std::size_t bytes) {
  const bool mean = IsGradientType(type);
  const std::size_t n = bytes / SizeOf(type);
  const Buffer first(type, n);
  const Buffer second(type, n);
  const void* srcs[] = {first.data(), second.data()};
  void* dsts[] = {first.data(), second.data()};
  std::uint32_t nonfinite = 0;
  const ReduceManyArgs args{srcs,
                            2,
                            -1,
                            type,
                            dsts,
                            2,
                            type,
                            type,
                            n,
                            mean ? ReduceOp::kSum : ReduceOp::kMax,
                            mean ? 0.5f : 1.0f,
                            &nonfinite};
  Job job;
  job.moved_bytes = 4 * bytes;
  job.run = [&] { kernels.reduce_many(args, nullptr); };
  job.check = [&] {
    const Buffer expected(type, n);
    return nonfinite == 0 &&
           std::memcmp(first.data(), expected.data(), bytes) == 0 &&
           std::memcmp(second.data(), expected.data(), bytes) == 0;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  const struct {
    DType type;
    const char* name;
  } types[] = {{DType::kFloat32, "f32"},
               {DType::kFloat64, "f64"},
               {DType::kInt64, "i64"},
               {DType::kInt8, "i8"}};
  for (const auto& [type, name] : types) {
    Register(std::string("reduce_many_2_to_2_") + name,
             [type = type](benchmark::State& state, const KernelTable& kernels,
                           std::size_t bytes) {
               Bench(state, kernels, type, bytes);
             });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
