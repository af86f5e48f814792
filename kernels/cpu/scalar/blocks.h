#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gradientflow::kernels::scalar {

inline constexpr std::size_t kBlock = 512;

// Calls f(begin, count) for [0, n) in parts of at most kBlock elements. Whole
// parts have a constant `count`: compilers vectorise a loop over it, if the
// loop writes only to the function's own memory.
template <class F>
void ForEachBlock(std::size_t n, F f) {
  std::size_t begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) {
    f(begin, std::integral_constant<std::size_t, kBlock>());
  }
  if (begin < n) f(begin, n - begin);
}

// Bits that are 0 if `value` is finite: those of value - value, which is 0 or a
// NaN. The result is an integer because compilers may not reorder sums of
// floats.
inline std::uint64_t NonFiniteBits(double value) {
  return std::bit_cast<std::uint64_t>(value - value);
}

}  // namespace gradientflow::kernels::scalar
