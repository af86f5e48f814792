#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// One step of a one-sided collective, as its owner publishes it. A rank writes
// only its own slots; peers read them. `value` numbers never decrease.
struct alignas(64) SyncSlot {
  // Written before `arrived`, read after it (release/acquire).
  std::uint64_t offset = 0;     // Of the buffer in the owner's arena.
  std::uint64_t signature = 0;  // Hash of what the owner thinks this is.
  std::uint32_t flags = 0;
  // My data is in place. 0 again: I have given up, my data is void.
  std::atomic<std::uint64_t> arrived{0};
  // On a line of its own: written while peers read the first.
  alignas(64) std::atomic<std::uint64_t> finished{0};  // I wrote my share.
  std::uint32_t finished_flags = 0;  // Written before `finished`.
};
inline constexpr int kSyncSlots = 512;

// Memory that the ranks of one host (or of one process) share: one arena per
// rank, mapped by all of them. Shared memory is anonymous (memfd), so the
// kernel frees it with the last process, however that dies.
// NOT thread-safe, but for reading addresses.
class SharedArena {
 public:
  virtual ~SharedArena() = default;

  // The ranks that share, me among them, ascending.
  virtual const std::vector<int>& members() const = 0;

  // `bytes` of my arena, 4096-aligned, zeroed; until Free() or destruction.
  // kResourceExhausted names the setting to raise.
  virtual Result<BufferView> Allocate(std::size_t bytes) = 0;
  virtual void Free(BufferView view) = 0;

  // Whether [data, data + bytes) is all inside memory that Allocate() gave.
  virtual bool Contains(const void* data, std::size_t bytes) const = 0;
  virtual std::uint64_t OffsetOf(const void* data) const = 0;

  // Member `rank`'s arena at `offset`, here; null if [offset, offset + bytes)
  // does not lie inside it (peers' numbers are not trusted).
  virtual std::byte* At(int rank, std::uint64_t offset,
                        std::size_t bytes) const = 0;

  // Slot `index` in [0, kSyncSlots) of member `rank`.
  virtual SyncSlot& slot(int rank, int index) const = 0;

  // After publishing in a slot: wakes the members that sleep.
  virtual void RingSleepers() = 0;
};

}  // namespace gradientflow
