#include "gradientflow/communicator/pool_memory.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Result<PoolMemory> PoolMemory::Allocate(SharedArena* arena,
                                        RemotePlaces* places,
                                        std::size_t bytes) {
  PoolMemory memory;
  if (bytes == 0) return memory;
  if (arena != nullptr) {
    Result<BufferView> view = arena->Allocate(bytes);
    if (!view.ok()) return view.status();
    memory.arena_ = arena;
    memory.view_ = view.value();
    if (places != nullptr) {
      memory.unreached_ = places->Lend(memory.view_);
      if (memory.unreached_.ok()) memory.places_ = places;
    }
    return memory;
  }
  if (places != nullptr) {
    const Result<BufferView> view = places->Allocate(bytes);
    if (view.ok()) {
      memory.places_ = places;
      memory.view_ = view.value();
      return memory;
    }
    memory.unreached_ = view.status();
  }
  memory.pages_ = NewPages<std::byte>(bytes);
  if (memory.pages_ == nullptr) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("cannot allocate ", bytes,
                         " bytes for the pool: ", std::strerror(errno)));
  }
  memory.view_ = {memory.pages_.get(), bytes, {}};
  return memory;
}

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  if (this != &other) {
    Release();
    arena_ = std::exchange(other.arena_, nullptr);
    places_ = std::exchange(other.places_, nullptr);
    pages_ = std::move(other.pages_);
    unreached_ = std::move(other.unreached_);
    view_ = std::exchange(other.view_, {});
  }
  return *this;
}

void PoolMemory::Release() {
  if (view_.data != nullptr) {
    if (places_ != nullptr && arena_ != nullptr) places_->Withdraw(view_);
    if (places_ != nullptr && arena_ == nullptr) places_->Free(view_);
    if (arena_ != nullptr) arena_->Free(view_);
  }
  arena_ = nullptr;
  places_ = nullptr;
  pages_.reset();
  view_ = {};
}

}  // namespace gradientflow
