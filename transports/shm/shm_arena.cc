#include "transports/shm/shm_arena.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

ArenaControl* Control(const Mapping& mapping) {
  return reinterpret_cast<ArenaControl*>(mapping.data());
}

}  // namespace

Result<std::shared_ptr<ShmArena>> ShmArena::Create(std::size_t arena_bytes) {
  if (arena_bytes < kMinArenaBytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("arena_bytes: expected at least ", kMinArenaBytes,
                         ", seen ", arena_bytes));
  }
  constexpr std::size_t kPage = 4096;
  const std::size_t rounded = arena_bytes > ~kPage
                                  ? arena_bytes
                                  : (arena_bytes + kPage - 1) / kPage * kPage;
  Result<std::shared_ptr<Mapping>> mapping = Mapping::Create(rounded);
  if (!mapping.ok()) return mapping.status();
  auto* const control = new (mapping.value()->data()) ArenaControl;
  control->slots = kSyncSlots;
  control->arena_bytes = rounded;
  control->heap_offset = kHeapOffset;
  control->version = kArenaVersion;
  control->magic = kArenaMagic;
  return std::shared_ptr<ShmArena>(new ShmArena(std::move(mapping).value()));
}

ShmArena::ShmArena(std::shared_ptr<Mapping> mine)
    : mine_(std::move(mine)), heap_(kHeapOffset, mine_->bytes()) {}

void ShmArena::SetSelf(int rank) {
  assert(members_.empty() && rank >= 0);
  members_.push_back(rank);
  mappings_.resize(static_cast<std::size_t>(rank) + 1);
  mappings_[rank] = mine_;
}

Status ShmArena::AddMember(int rank, std::shared_ptr<Mapping> peer) {
  assert(rank >= 0 && !members_.empty());
  if (peer->bytes() < kMinArenaBytes) {
    return Status(StatusCode::kDataLoss,
                  StrCat("arena of rank ", rank, ": expected at least ",
                         kMinArenaBytes, " bytes, seen ", peer->bytes()));
  }
  const ArenaControl* const control = Control(*peer);
  if (control->magic != kArenaMagic || control->version != kArenaVersion ||
      control->slots != kSyncSlots || control->heap_offset != kHeapOffset ||
      control->arena_bytes != peer->bytes()) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("arena of rank ", rank, ": expected version ", kArenaVersion,
               " with ", kSyncSlots, " slots in ", peer->bytes(),
               " bytes, seen version ", control->version, " with ",
               control->slots, " slots in ", control->arena_bytes, " bytes"));
  }
  if (mappings_.size() <= static_cast<std::size_t>(rank)) {
    mappings_.resize(static_cast<std::size_t>(rank) + 1);
  }
  assert(mappings_[rank] == nullptr);
  mappings_[rank] = std::move(peer);
  members_.insert(std::lower_bound(members_.begin(), members_.end(), rank),
                  rank);
  return Status();
}

Result<BufferView> ShmArena::AllocateFifo(std::size_t capacity) {
  Result<BufferView> view = Allocate(kFifoControlBytes + capacity);
  if (view.ok()) new (view.value().data) FifoControl;
  return view;
}

// The numbers come from a peer, so nothing about them is taken for granted.
Result<FifoMemory> ShmArena::FifoAt(int rank, std::uint64_t offset,
                                    std::uint64_t capacity) const {
  std::byte* at = nullptr;
  if (std::has_single_bit(capacity) && capacity >= kMinFifoBytes &&
      capacity <= kMaxFifoBytes && offset % 4096 == 0) {
    at = At(rank, offset, kFifoControlBytes + capacity);
  }
  if (at == nullptr) {
    return Status(StatusCode::kDataLoss,
                  StrCat("arena of rank ", rank, ": no FIFO of ", capacity,
                         " bytes can be at offset ", offset));
  }
  return FifoMemory{reinterpret_cast<FifoControl*>(at), at + kFifoControlBytes,
                    static_cast<std::size_t>(capacity)};
}

void ShmArena::AddBell(const Doorbell* bell) { bells_.push_back(bell); }

void ShmArena::RemoveBell(const Doorbell* bell) { std::erase(bells_, bell); }

// New pages of the mapping are zero, and Free() discards the pages it gets
// back. So every window is zero without being touched.
Result<BufferView> ShmArena::Allocate(std::size_t bytes) {
  const auto offset = heap_.Allocate(bytes);
  if (!offset) {
    return Status(
        StatusCode::kResourceExhausted,
        StrCat("shared arena: ", bytes, " bytes do not fit (",
               heap_.free_bytes(), " free, at most ",
               heap_.largest_free_bytes(),
               " in one piece): raise arena_bytes, now ", mine_->bytes()));
  }
  return BufferView{mine_->data() + *offset, bytes, DeviceId{}};
}

void ShmArena::Free(BufferView view) {
  const std::uint64_t offset = OffsetOf(view.data);
  const auto bytes = heap_.Free(offset);
  assert(bytes.has_value());
  if (bytes) mine_->Discard(offset, *bytes);
}

bool ShmArena::Contains(const void* data, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const auto begin = reinterpret_cast<std::uintptr_t>(mine_->data());
  return at >= begin && heap_.Contains(at - begin, bytes);
}

std::uint64_t ShmArena::OffsetOf(const void* data) const {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(data) -
                                    mine_->data());
}

// Written without additions that could overflow.
std::byte* ShmArena::At(int rank, std::uint64_t offset,
                        std::size_t bytes) const {
  if (rank < 0 || static_cast<std::size_t>(rank) >= mappings_.size()) {
    return nullptr;
  }
  const Mapping* const mapping = mappings_[rank].get();
  if (mapping == nullptr || offset < kHeapOffset || offset > mapping->bytes() ||
      bytes > mapping->bytes() - offset) {
    return nullptr;
  }
  return mapping->data() + offset;
}

SyncSlot& ShmArena::slot(int rank, int index) const {
  assert(std::binary_search(members_.begin(), members_.end(), rank));
  assert(index >= 0 && index < kSyncSlots);
  return Control(*mappings_[rank])->sync[index];
}

std::uint64_t ShmArena::Publications(int rank) const {
  return Control(*mappings_[rank])
      ->publications.load(std::memory_order_seq_cst);
}

void ShmArena::RingSleepers() {
  std::atomic<std::uint64_t>& publications = Control(*mine_)->publications;
  publications.store(publications.load(std::memory_order_relaxed) + 1,
                     std::memory_order_release);
  rings_owed_ = true;
  for (const Doorbell* bell : bells_) bell->Ring(kRingForSlot);
}

// A fence waits until peers have given up the lines just written: some 100 ns
// that a small allreduce can use for its own work. A sleeper either sees the
// new count of publications, or is seen asleep after the fence.
void ShmArena::RingMissed() {
  if (!std::exchange(rings_owed_, false)) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Doorbell* bell : bells_) bell->Ring(kRingForSlot);
}

}  // namespace gradientflow
