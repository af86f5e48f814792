#pragma once

#include <cstddef>
#include <memory>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/pages.h"
#include "gradientflow/base/status.h"
#include "transports/arena.h"

namespace gradientflow {

// Owns zeroed memory for a pool: in the arena, so that the ranks of this host
// reach it, or of this process alone if there is no arena.
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
  Pages<std::byte> pages_;  // If there is no arena.
  BufferView view_;
};

}  // namespace gradientflow
