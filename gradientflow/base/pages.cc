#include "gradientflow/base/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace gradientflow {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t RoundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

void UnmapPages::operator()(void* data) const { ::munmap(data, bytes); }

void* MapPages(std::size_t bytes, std::size_t* mapped_bytes) {
  const std::size_t wanted = RoundUp(std::max<std::size_t>(bytes, 1), 4096);
  // Only memory that begins at a multiple of a huge page can use huge pages.
  const std::size_t slack = wanted >= kHugePage ? kHugePage : 0;
  void* const mapped = ::mmap(nullptr, wanted + slack, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* data = static_cast<std::byte*>(mapped);
  if (slack > 0) {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    const std::size_t before = RoundUp(at, kHugePage) - at;
    if (before > 0) ::munmap(data, before);
    data += before;
    if (before < slack) ::munmap(data + wanted, slack - before);
    // Failure does no harm.
    ::madvise(data, wanted, MADV_HUGEPAGE);
  }
  *mapped_bytes = wanted;
  return data;
}

}  // namespace gradientflow
