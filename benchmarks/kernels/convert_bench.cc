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
  DType src;
  DType dst;
  bool settled;
};

void Bench(benchmark::State& state, const KernelTable& kernels,
           std::size_t bytes, Case with) {
  const std::size_t wide = std::max(SizeOf(with.src), SizeOf(with.dst));
  const std::size_t n = bytes / wide;
  const Buffer src(with.src, n);
  const Buffer dst(with.dst, n);
  std::uint32_t nonfinite = 0;
  const ConvertArgs args{src.data(),
                         with.src,
                         dst.data(),
                         with.dst,
                         with.settled ? src.data() : nullptr,
                         n,
                         1.0f,
                         &nonfinite};
  Job job;
  job.moved_bytes =
      n * (SizeOf(with.src) * (with.settled ? 2 : 1) + SizeOf(with.dst));
  job.run = [&] { kernels.convert(args, nullptr); };
  job.check = [&] {
    const Buffer expected(with.dst, n);
    ConvertArgs reference = args;
    reference.dst = expected.data();
    AllCpuKernels()[0]->convert(reference, nullptr);
    return nonfinite == 0 &&
           std::memcmp(expected.data(), dst.data(), n * SizeOf(with.dst)) == 0;
  };
  AgainstMemcpy(state, job, bytes);
}

const bool kRegistered = [] {
  for (const Case with : {Case{DType::kFloat32, DType::kFloat16, false},
                          Case{DType::kFloat32, DType::kFloat16, true},
                          Case{DType::kFloat16, DType::kFloat32, false},
                          Case{DType::kFloat32, DType::kBFloat16, false},
                          Case{DType::kFloat32, DType::kBFloat16, true},
                          Case{DType::kBFloat16, DType::kFloat32, false}}) {
    const std::string name = std::string("convert_") + ShortName(with.src) +
                             "_" + ShortName(with.dst) +
                             (with.settled ? "_settled" : "");
    Register(name,
             [with](benchmark::State& state, const KernelTable& kernels,
                    std::size_t bytes) { Bench(state, kernels, bytes, with); });
  }
  return true;
}();

}  // namespace
}  // namespace gradientflow::kernels::bench
