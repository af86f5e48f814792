#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/schedule.h"
#include "transports/arena.h"

namespace gradientflow {

// Memory in this rank's arena for the small buffers that it shows its peers by
// copy (Schedule::mailed). Each sync of a channel has a box, and the sync
// kBoxes later has the same one. While mailed syncs are under way, at most
// kBoxes / 2 syncs are, so that no box is overwritten before all peers have
// read it. (The proof is that of the slots: see CallQueue::HasSlotsFor().) NOT
// thread-safe. The memory stays taken until the arena ends, since a peer may be
// reading when this rank is done.
class Mailboxes {
 public:
  static constexpr std::uint64_t kBoxes = 16;
  // A float32 pool with a 16-bit wire takes twice the bytes of the wire.
  static constexpr std::size_t kBoxBytes = 2 * kMailBytes;

  explicit Mailboxes(SharedArena* arena) : arena_(arena) {}

  // Returns the box of `sync`, of kBoxBytes; kResourceExhausted if the arena is
  // full. REQUIRES an arena.
  Result<std::byte*> At(Channel channel, std::uint64_t sync) {
    std::byte*& boxes = boxes_[static_cast<std::size_t>(channel)];
    if (boxes == nullptr) {
      const Result<BufferView> taken = arena_->Allocate(kBoxes * kBoxBytes);
      if (!taken.ok()) return taken.status();
      boxes = taken.value().data;
    }
    return boxes + sync % kBoxes * kBoxBytes;
  }

 private:
  SharedArena* const arena_;
  std::array<std::byte*, kChannels> boxes_{};
};

}  // namespace gradientflow
