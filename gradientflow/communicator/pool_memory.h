#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/pages.h"
#include "gradientflow/base/status.h"
#include "transports/arena.h"
#include "transports/remote_places.h"

namespace gradientflow {

// Owns zeroed memory for a pool: in the arena, so that the ranks of this host
// reach it; where the network card and so the ranks of other hosts do; in both,
// if there are both; or of this process alone.
class PoolMemory {
 public:
  // `arena` and `places` may be null; otherwise they outlive the memory.
  static Result<PoolMemory> Allocate(SharedArena* arena, RemotePlaces* places,
                                     std::size_t bytes);
  PoolMemory() = default;
  ~PoolMemory() { Release(); }
  PoolMemory(PoolMemory&& other) noexcept { *this = std::move(other); }
  PoolMemory& operator=(PoolMemory&& other) noexcept;

  BufferView view() const { return view_; }
  // Why the network card does not reach the memory although there is one, so
  // that what is sent has to be copied; OK if that is not so.
  const Status& unreached() const { return unreached_; }

 private:
  void Release();
  SharedArena* arena_ = nullptr;
  RemotePlaces* places_ = nullptr;
  Pages<std::byte> pages_;  // If there is no arena, and no place.
  BufferView view_;
  Status unreached_;
};

}  // namespace gradientflow
