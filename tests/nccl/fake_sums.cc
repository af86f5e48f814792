// How libfake_nccl.so adds up: as NCCL's classic kernels do, rounding to the
// type of the elements wherever they round.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/nccl/fake_world.h"

namespace gradientflow::testing {
namespace {

using kernels::DType;

DType TypeOf(nccl::DataType type) {
  for (const kernels::DTypeTraits& traits : kernels::kDTypeTraits) {
    if (traits.nccl == static_cast<int>(type)) return traits.type;
  }
  return DType::kInt8;
}

kernels::ReduceOp KernelOp(nccl::RedOp op) {
  switch (op) {
    case nccl::RedOp::kProd:
      return kernels::ReduceOp::kProduct;
    case nccl::RedOp::kMax:
      return kernels::ReduceOp::kMax;
    case nccl::RedOp::kMin:
      return kernels::ReduceOp::kMin;
    default:
      return kernels::ReduceOp::kSum;
  }
}

// NCCL stores a factor in the type of the elements.
float FactorIn(DType type, double factor) {
  float wide = static_cast<float>(factor);
  if (type == DType::kFloat32) return wide;
  std::array<std::byte, 4> narrow;
  const auto& k = kernels::CpuKernels();
  k.convert(
      {&wide, DType::kFloat32, narrow.data(), type, nullptr, 1, 1.0F, nullptr},
      nullptr);
  k.convert(
      {narrow.data(), type, &wide, DType::kFloat32, nullptr, 1, 1.0F, nullptr},
      nullptr);
  return wide;
}

using Bytes = std::vector<std::byte>;

// A rank's elements, multiplied by its factor and rounded.
Bytes Scaled(const std::byte* data, std::size_t n, DType type, double factor) {
  Bytes out(n * SizeOf(type));
  if (factor == 1.0 || !(IsGradientType(type) || type == DType::kFloat64)) {
    if (n > 0) std::memcpy(out.data(), data, out.size());
    return out;
  }
  if (type == DType::kFloat64) {
    for (std::size_t i = 0; i < n; ++i) {
      double value;
      std::memcpy(&value, data + i * sizeof(value), sizeof(value));
      value *= factor;
      std::memcpy(out.data() + i * sizeof(value), &value, sizeof(value));
    }
    return out;
  }
  kernels::CpuKernels().convert({data, type, out.data(), type, nullptr, n,
                                 FactorIn(type, factor), nullptr},
                                nullptr);
  return out;
}

// Elements [begin, begin + n) along a ring that begins at rank `first`.
Bytes AlongRing(const std::vector<FakeOp*>& parts, std::size_t first,
                std::size_t begin, std::size_t n) {
  const FakeOp& any = *parts[0];
  const DType type = TypeOf(any.type);
  const double factor = any.op == nccl::RedOp::kAvg
                            ? 1.0 / static_cast<double>(parts.size())
                            : any.factor;
  Bytes total;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const FakeOp& part = *parts[(first + i) % parts.size()];
    const auto* data =
        static_cast<const std::byte*>(part.send) + begin * SizeOf(type);
    Bytes own = Scaled(data, n, type, factor);
    if (i == 0) {
      total = std::move(own);
      continue;
    }
    kernels::CpuKernels().accumulate({total.data(), type, own.data(), type, n,
                                      KernelOp(any.op), 1.0F, 1.0F, nullptr},
                                     nullptr);
  }
  return total;
}

}  // namespace

std::size_t SizeOf(nccl::DataType type) { return SizeOf(TypeOf(type)); }

double FactorAt(const void* scalar, nccl::DataType type) {
  if (type == nccl::DataType::kFloat64) {
    double wide;
    std::memcpy(&wide, scalar, sizeof(wide));
    return wide;
  }
  float value = 0;
  kernels::CpuKernels().convert({scalar, TypeOf(type), &value, DType::kFloat32,
                                 nullptr, 1, 1.0F, nullptr},
                                nullptr);
  return value;
}

// In blocks, one for each rank.
Bytes Reduced(const std::vector<FakeOp*>& parts, std::size_t begin,
              std::size_t n) {
  const std::size_t size = parts.size();
  const std::size_t block = (n + size - 1) / size;
  const auto shift =
      static_cast<std::size_t>(State().mode(FakeNcclMode::kFirstRank));
  Bytes total;
  for (std::size_t b = 0; b * block < n; ++b) {
    const Bytes sums = AlongRing(parts, (b + shift) % size, begin + b * block,
                                 std::min(block, n - b * block));
    total.insert(total.end(), sums.begin(), sums.end());
  }
  return total;
}

}  // namespace gradientflow::testing
