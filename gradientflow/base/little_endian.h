#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

namespace gradientflow {

// Unsigned numbers as bytes, least significant byte first, at any alignment.
// Where that is the order of the machine they are copied, since compilers do
// not see at -O2 that the loops do just that: eight bytes took 56 instructions.
template <typename T>
void PutLittleEndian(std::byte* to, T value) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(to, &value, sizeof(T));
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      to[i] = static_cast<std::byte>(value >> (8 * i));
    }
  }
}

template <typename T>
T GetLittleEndian(const std::byte* from) {
  T value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, from, sizeof(T));
  } else {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | (static_cast<T>(from[i]) << (8 * i)));
    }
  }
  return value;
}

}  // namespace gradientflow
