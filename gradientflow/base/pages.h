#pragma once

#include <cstddef>
#include <memory>

namespace gradientflow {

// Maps whole pages of private memory, huge ones if the kernel has them. That
// saves page faults and TLB misses for large arrays that every step walks
// through. The memory is zeroed; a page appears when it is touched. Maps at
// least one page, whatever `bytes` is. Returns null, and sets errno, if there
// is no memory.
void* MapPages(std::size_t bytes, std::size_t* mapped_bytes);

struct UnmapPages {
  std::size_t bytes = 0;
  void operator()(void* data) const;
};
template <typename T>
using Pages = std::unique_ptr<T[], UnmapPages>;

template <typename T>
Pages<T> NewPages(std::size_t count) {
  std::size_t bytes = 0;
  T* const data = static_cast<T*>(MapPages(count * sizeof(T), &bytes));
  return Pages<T>(data, UnmapPages{bytes});
}

}  // namespace gradientflow
