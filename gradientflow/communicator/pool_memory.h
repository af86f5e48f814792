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

// Owns zeroed memory for a pool. If there is an arena, the memory is there, so
// that the ranks of this host reach it. If there are places, the network card
// reaches it, and so do the ranks of other hosts. With neither, only this
// process reaches it.
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
  Pages<std::byte> pages_;  // If there are neither arena nor places.
  BufferView view_;
  Status unreached_;
};

}  // namespace gradientflow
