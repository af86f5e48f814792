#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/arena.h"
#include "transports/shm/doorbell.h"
#include "transports/shm/fifo.h"
#include "transports/shm/mapping.h"
#include "transports/shm/window_heap.h"

namespace gradientflow {

// The start of every arena, followed by the heap of windows at kHeapOffset.
struct ArenaControl {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t slots = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t heap_offset = 0;
  // How often the owner called RingSleepers().
  alignas(64) std::atomic<std::uint64_t> publications{0};
  alignas(4096) SyncSlot sync[kSyncSlots];
};
inline constexpr std::uint64_t kArenaMagic = 0x616e657261464721;
inline constexpr std::uint32_t kArenaVersion = 1;
static_assert(sizeof(ArenaControl) % 4096 == 0);  // By its alignment.
inline constexpr std::uint64_t kHeapOffset = sizeof(ArenaControl);
inline constexpr std::size_t kMinArenaBytes =
    kHeapOffset + (std::size_t{128} << 10);

// SharedArena over one Mapping per member. Shared by the host object and its
// links, all on one thread.
class ShmArena final : public SharedArena {
 public:
  // Of `arena_bytes` (rounded up to a page), with no members yet.
  static Result<std::shared_ptr<ShmArena>> Create(std::size_t arena_bytes);

  // Mine, for others to map.
  const std::shared_ptr<Mapping>& mapping() const { return mine_; }

  // Makes me `rank`, alone; then adds the others, each once.
  void SetSelf(int rank);
  // kDataLoss if `peer` is not an arena of this version.
  Status AddMember(int rank, std::shared_ptr<Mapping> peer);

  // Where the bytes of an incoming FIFO go: control block, then `capacity`
  // bytes. Lives as long as the arena.
  Result<BufferView> AllocateFifo(std::size_t capacity);
  // The FIFO at `offset` of member `rank`. kDataLoss if there cannot be one.
  Result<FifoMemory> FifoAt(int rank, std::uint64_t offset,
                            std::uint64_t capacity) const;

  // `bell` must live until it is removed.
  void AddBell(const Doorbell* bell);
  void RemoveBell(const Doorbell* bell);

  // How often member `rank` has called RingSleepers().
  std::uint64_t Publications(int rank) const;

  const std::vector<int>& members() const override { return members_; }
  Result<BufferView> Allocate(std::size_t bytes) override;
  void Free(BufferView view) override;
  bool Contains(const void* data, std::size_t bytes) const override;
  std::uint64_t OffsetOf(const void* data) const override;
  std::byte* At(int rank, std::uint64_t offset,
                std::size_t bytes) const override;
  SyncSlot& slot(int rank, int index) const override;
  void RingSleepers() override;

 private:
  explicit ShmArena(std::shared_ptr<Mapping> mine);

  const std::shared_ptr<Mapping> mine_;
  WindowHeap heap_;
  std::vector<int> members_;
  std::vector<std::shared_ptr<Mapping>> mappings_;  // By rank; holes are null.
  std::vector<const Doorbell*> bells_;
};

}  // namespace gradientflow
