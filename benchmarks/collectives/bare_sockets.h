#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <system_error>

namespace gradientflow::benchmarks {

// Returns how many bytes a call of send() or recv() with result `n` has moved.
// Throws std::system_error if the other side is gone.
inline std::size_t Moved(ssize_t n) {
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
    throw std::system_error(n == 0 ? 0 : errno, std::generic_category(),
                            "the other side is gone");
  }
  return n < 0 ? 0 : static_cast<std::size_t>(n);
}

}  // namespace gradientflow::benchmarks
