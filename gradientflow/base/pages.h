#pragma once

#include <cstddef>
#include <memory>

namespace gradientflow {

// Whole pages of this process's memory, huge ones where the kernel has them,
// which spares page faults and TLB misses: for large arrays that every step
// walks through. Zeroed; a page appears when it is touched. Null, with errno:
// there is no memory. At least one page, whatever `bytes`.
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
