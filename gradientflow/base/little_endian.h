#pragma once

#include <cstddef>

namespace gradientflow {

// Unsigned numbers as bytes, least significant byte first, at any alignment.
// Compilers turn both loops into a single load or store.
template <typename T>
void PutLittleEndian(std::byte* to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    to[i] = static_cast<std::byte>(value >> (8 * i));
  }
}

template <typename T>
T GetLittleEndian(const std::byte* from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(from[i]) << (8 * i)));
  }
  return value;
}

}  // namespace gradientflow
