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

// The start of every arena. The heap of windows follows at kHeapOffset.
struct ArenaControl {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t slots = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t heap_offset = 0;
  // Number of times that the owner has called RingSleepers().
  alignas(64) std::atomic<std::uint64_t> publications{0};
  alignas(4096) SyncSlot sync[kSyncSlots];
};
inline constexpr std::uint64_t kArenaMagic = 0x616e657261464721;
inline constexpr std::uint32_t kArenaVersion = 1;
static_assert(sizeof(ArenaControl) % 4096 == 0);  // By its alignment.
inline constexpr std::uint64_t kHeapOffset = sizeof(ArenaControl);
inline constexpr std::size_t kMinArenaBytes =
    kHeapOffset + (std::size_t{128} << 10);

// A SharedArena over one Mapping for each member. Shared by the endpoint and
// its links, all of them on one thread.
class ShmArena final : public SharedArena {
 public:
  // Creates an arena of `arena_bytes`, rounded up to a page, without members.
  static Result<std::shared_ptr<ShmArena>> Create(std::size_t arena_bytes);

  // This rank's mapping, for others to map.
  const std::shared_ptr<Mapping>& mapping() const { return mine_; }

  // Makes this rank `rank`, the only member. Then AddMember() adds the others,
  // each once.
  void SetSelf(int rank);
  // Returns kDataLoss if `peer` is not an arena of this version.
  Status AddMember(int rank, std::shared_ptr<Mapping> peer);

  // Allocates an incoming FIFO: its control block, then `capacity` bytes. It
  // lives as long as the arena.
  Result<BufferView> AllocateFifo(std::size_t capacity);
  // Returns the FIFO at `offset` of member `rank`, or kDataLoss if there cannot
  // be one.
  Result<FifoMemory> FifoAt(int rank, std::uint64_t offset,
                            std::uint64_t capacity) const;

  // `bell` must live until it is removed.
  void AddBell(const Doorbell* bell);
  void RemoveBell(const Doorbell* bell);

  // Number of times that member `rank` has called RingSleepers().
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
  void RingMissed() override;

 private:
  explicit ShmArena(std::shared_ptr<Mapping> mine);

  const std::shared_ptr<Mapping> mine_;
  WindowHeap heap_;
  std::vector<int> members_;
  std::vector<std::shared_ptr<Mapping>> mappings_;  // By rank; gaps are null.
  std::vector<const Doorbell*> bells_;
  bool rings_owed_ = false;
};

}  // namespace gradientflow
