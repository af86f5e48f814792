#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "kernels/kernels.h"

// Gradients of any dtype for tests, as floats that the dtype holds exactly.
namespace gradientflow::testing {

inline std::vector<std::byte> ToPool(const std::vector<float>& values,
                                     DType type) {
  std::vector<std::byte> pool(values.size() * SizeOf(type));
  (*kernels::AllCpuKernels())
      ->convert({.src = values.data(),
                 .src_type = DType::kFloat32,
                 .dst = pool.data(),
                 .dst_type = type,
                 .settled = nullptr,
                 .n = values.size(),
                 .scale = 1.0F,
                 .nonfinite = nullptr},
                nullptr);
  return pool;
}

inline std::vector<float> ToFloats(const std::vector<std::byte>& pool,
                                   DType type) {
  std::vector<float> values(pool.size() / SizeOf(type));
  (*kernels::AllCpuKernels())
      ->convert({.src = pool.data(),
                 .src_type = type,
                 .dst = values.data(),
                 .dst_type = DType::kFloat32,
                 .settled = nullptr,
                 .n = values.size(),
                 .scale = 1.0F,
                 .nonfinite = nullptr},
                nullptr);
  return values;
}

inline std::vector<float> RandomFloats(std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

inline std::uint32_t Bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

// Half a unit in the last place of `type`, relative.
inline double Rounding(DType type) {
  switch (type) {
    case DType::kFloat16:
      return 0x1p-11;
    case DType::kBFloat16:
      return 0x1p-8;
    default:
      return 0x1p-24;
  }
}

}  // namespace gradientflow::testing
