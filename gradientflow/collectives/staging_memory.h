#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "transports/arena.h"

namespace gradientflow {

// Page-locked host memory that calls take in turn and give back. It is a ring,
// so it does not fragment, and allocates nothing once it has grown to its
// largest block. It lies in the arena if there is one, so that ranks of a host
// reach each other's staging.
// NOT thread-safe. Both constructor arguments outlive it. All blocks are given
// back before it is destroyed.
class StagingMemory {
 public:
  // The first use allocates `usual_bytes`. Only a single larger block makes it
  // grow.
  StagingMemory(Device& device, SharedArena* arena, std::size_t usual_bytes)
      : device_(device), arena_(arena), usual_bytes_(usual_bytes) {}
  ~StagingMemory() { Release(); }
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // Returns a block that is 256-byte aligned, with undefined content, or null
  // if there is no room until other blocks are given back. Returns
  // kResourceExhausted if there will never be room.
  Result<std::byte*> Take(std::size_t bytes);
  // REQUIRES a block that Take() returned.
  void Give(const std::byte* block);

  std::size_t capacity_bytes() const { return capacity_; }

 private:
  struct Block {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool given_back = false;
  };

  Status Grow(std::size_t bytes);
  void Release();

  Device& device_;
  SharedArena* const arena_;
  const std::size_t usual_bytes_;
  std::size_t capacity_ = 0;
  std::byte* data_ = nullptr;
  BufferView window_;             // In the arena, if there is one,
  std::shared_ptr<void> locked_;  // and its page lock.
  DeviceMemory own_;              // Else memory of this process alone.
  std::vector<Block> blocks_;     // In the order of taking.
};

}  // namespace gradientflow
