#include "gradientflow/session/pool_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Result<PoolMemory> PoolMemory::Allocate(SharedArena* arena, std::size_t bytes) {
  PoolMemory memory;
  if (bytes == 0) return memory;
  if (arena != nullptr) {
    Result<BufferView> view = arena->Allocate(bytes);
    if (!view.ok()) return view.status();
    memory.arena_ = arena;
    memory.view_ = view.value();
    return memory;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("cannot allocate ", bytes,
                         " bytes for the pool: ", std::strerror(errno)));
  }
  // Fewer page faults and TLB misses; it works without, too.
  madvise(data, bytes, MADV_HUGEPAGE);
  memory.view_ = {static_cast<std::byte*>(data), bytes, {}};
  return memory;
}

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  if (this != &other) {
    Release();
    arena_ = std::exchange(other.arena_, nullptr);
    view_ = std::exchange(other.view_, {});
  }
  return *this;
}

void PoolMemory::Release() {
  if (view_.data == nullptr) return;
  if (arena_ != nullptr) {
    arena_->Free(view_);
  } else {
    munmap(view_.data, view_.bytes);
  }
  view_ = {};
}

}  // namespace gradientflow
