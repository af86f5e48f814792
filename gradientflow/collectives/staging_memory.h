#pragma once

#include <cstddef>
#include <memory>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/block_ring.h"
#include "gradientflow/device/device.h"
#include "transports/arena.h"
#include "transports/remote_places.h"

namespace gradientflow {

// Page-locked host memory that calls take in turn and give back. It is a ring,
// so it does not fragment, and allocates nothing once it has grown to its
// largest block. It lies in the arena if there is one, so that ranks of a host
// reach each other's staging; else where the network card reaches it, so that
// what is sent from there or received there is not copied once more.
// NOT thread-safe. The constructor's arguments outlive it. All blocks are given
// back before it is destroyed.
class StagingMemory {
 public:
  // The first use allocates `usual_bytes`. Only a single larger block makes it
  // grow. `arena` and `places` may be null.
  StagingMemory(Device& device, SharedArena* arena, RemotePlaces* places,
                std::size_t usual_bytes)
      : device_(device),
        arena_(arena),
        places_(places),
        usual_bytes_(usual_bytes) {}
  ~StagingMemory() { Release(); }
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Returns a block that is 256-byte aligned, with undefined content, or null
  // if there is no room until other blocks are given back. Returns
  // kResourceExhausted if there will never be room.
  Result<std::byte*> Take(std::size_t bytes);
  // REQUIRES a block that Take() returned.
  void Give(const std::byte* block);

  // Bytes allocated so far, which tests hold to a bound.
  std::size_t capacity_bytes() const { return ring_.capacity(); }
  // Why the network card does not reach the memory although there is one; OK if
  // that is not so.
  const Status& unreached() const { return unreached_; }

 private:
  Status Grow(std::size_t bytes);
  Status GrowWindow(std::size_t bytes);
  Status Lock(BufferView window);
  void Release();

  Device& device_;
  SharedArena* const arena_;
  RemotePlaces* const places_;
  const std::size_t usual_bytes_;
  std::byte* data_ = nullptr;
  BufferView window_;             // In the arena or of places_,
  bool in_places_ = false;        // in which of the two,
  std::shared_ptr<void> locked_;  // and its page lock.
  DeviceMemory own_;              // Else memory of this process alone.
  BlockRing ring_;
  Status unreached_;
};

}  // namespace gradientflow
