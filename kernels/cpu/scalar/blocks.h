#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gradientflow::kernels::scalar {

inline constexpr std::size_t kBlock = 512;

// f(begin, count) for [0, n) in parts of at most kBlock elements. Whole parts
// have a `count` that compilers know: they make vectors of a loop over it, if
// what it writes is the function's own.
template <class F>
void ForEachBlock(std::size_t n, F f) {
  std::size_t begin = 0;
  for (; begin + kBlock <= n; begin += kBlock) {
    f(begin, std::integral_constant<std::size_t, kBlock>());
  }
  if (begin < n) f(begin, n - begin);
}

// Bits that are 0 if `value` is finite: those of value - value, which is 0, or
// a NaN. An integer, since sums of floats must not change their order.
inline std::uint64_t NonFiniteBits(double value) {
  return std::bit_cast<std::uint64_t>(value - value);
}

}  // namespace gradientflow::kernels::scalar
