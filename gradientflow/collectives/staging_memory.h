#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "transports/arena.h"

namespace gradientflow {

// Page-locked host memory that calls take in turn and give back: a ring, so
// that neither fragments nor allocates once it is as large as its largest
// taker. In the arena if there is one, so that ranks of a host reach each
// other's.
// NOT thread-safe. Outlived by both arguments; all blocks given back first.
class StagingMemory {
 public:
  // `usual_bytes`: so much is allocated at first use; more only for a single
  // block that is larger.
  StagingMemory(Device& device, SharedArena* arena, std::size_t usual_bytes)
      : device_(device), arena_(arena), usual_bytes_(usual_bytes) {}
  ~StagingMemory() { Release(); }
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // A block, 256-byte aligned, its content undefined; null if there is no room
  // until others are given back. kResourceExhausted: there never will be.
  Result<std::byte*> Take(std::size_t bytes);
  // REQUIRES a block that Take() gave.
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
  BufferView window_;             // Of the arena,
  std::shared_ptr<void> locked_;  // page-locked; or
  DeviceMemory own_;              // memory of this process alone.
  std::vector<Block> blocks_;     // In the order of taking.
};

}  // namespace gradientflow
