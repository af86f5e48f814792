#pragma once

#include <cstddef>
#include <memory>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/pages.h"
#include "gradientflow/base/status.h"
#include "transports/arena.h"

namespace gradientflow {

// Zeroed memory for a pool: in the arena, so that the host's ranks reach it,
// or of this process alone when there is no arena. Owns it.
class PoolMemory {
 public:
  // `arena` may be null; otherwise it outlives the memory.
  static Result<PoolMemory> Allocate(SharedArena* arena, std::size_t bytes);
  PoolMemory() = default;
  ~PoolMemory() { Release(); }
  PoolMemory(PoolMemory&& other) noexcept { *this = std::move(other); }
  PoolMemory& operator=(PoolMemory&& other) noexcept;

  BufferView view() const { return view_; }

 private:
  void Release();
  SharedArena* arena_ = nullptr;
  Pages<std::byte> pages_;  // Where there is no arena.
  BufferView view_;
};

}  // namespace gradientflow
