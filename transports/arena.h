#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// One synchronisation of a one-sided collective, as its owner publishes it. A
// rank writes only its own slots, and its peers read them. `arrived` only
// grows, until the owner gives up. A slot has two cache lines, since processors
// fetch them in pairs.
struct alignas(128) SyncSlot {
  // Written before `arrived` and read after it (release/acquire).
  std::uint64_t offset = 0;     // Where the buffer is in the owner's arena.
  std::uint64_t signature = 0;  // Hash of the call that the owner is in.
  std::uint32_t flags = 0;
  // Number of the sync that the owner has come to: its data is in place. The
  // owner resets it to 0 when it gives up and its data is void.
  std::atomic<std::uint64_t> arrived{0};
};
inline constexpr int kSyncSlots = 512;

// Memory that the ranks of one host (or of one process) share: one arena per
// rank, mapped by all of them. Shared memory is anonymous (memfd), so the
// kernel frees it with the last process, however that process dies.
// NOT thread-safe, except for reading addresses.
class SharedArena {
 public:
  virtual ~SharedArena() = default;

  // The ranks that share memory, this one included, ascending.
  virtual const std::vector<int>& members() const = 0;

  // Returns `bytes` of this rank's arena, 4096-aligned and zeroed. They stay
  // valid until Free() or the destructor. kResourceExhausted names the setting
  // to raise.
  virtual Result<BufferView> Allocate(std::size_t bytes) = 0;
  virtual void Free(BufferView view) = 0;

  // Returns whether [data, data + bytes) lies in memory that Allocate() gave.
  virtual bool Contains(const void* data, std::size_t bytes) const = 0;
  virtual std::uint64_t OffsetOf(const void* data) const = 0;

  // Returns where `offset` in member `rank`'s arena is mapped in this process,
  // or null if [offset, offset + bytes) is not inside that arena. The check is
  // needed because the numbers of peers are not trusted.
  virtual std::byte* At(int rank, std::uint64_t offset,
                        std::size_t bytes) const = 0;

  // Slot `index` of member `rank`; 0 <= index < kSyncSlots.
  virtual SyncSlot& slot(int rank, int index) const = 0;

  // Wakes the members that sleep. To be called after publishing in a slot. It
  // waits for no memory, and may miss a member that falls asleep meanwhile: a
  // call of RingMissed() must follow before this thread blocks.
  virtual void RingSleepers() = 0;
  // Wakes the members that RingSleepers() has missed since the last call. Costs
  // nothing if it has not been called.
  virtual void RingMissed() = 0;
};

}  // namespace gradientflow
