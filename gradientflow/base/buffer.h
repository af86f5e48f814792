#pragma once

#include <cstddef>
#include <cstdint>

namespace gradientflow {

// A device, numbered 0 to n-1 within its kind. kCpu has index 0 only.
struct DeviceId {
  enum class Kind : std::uint8_t { kCpu, kCuda } kind = Kind::kCpu;
  int index = 0;
};

// A borrowed run of bytes in the memory of `device`. Owns nothing. The function
// that hands one out says how long it stays valid.
struct ConstBufferView {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  DeviceId device;
};

struct BufferView {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  DeviceId device;

  operator ConstBufferView() const {  // NOLINT: implicit.
    return {data, bytes, device};
  }
};

}  // namespace gradientflow
