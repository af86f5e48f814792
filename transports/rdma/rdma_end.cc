#include "transports/rdma/rdma_end.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/frames.h"

namespace gradientflow {
namespace {

// The layout of RdmaEnd::memory_: first what the peer writes, then what this
// rank's card reads.
constexpr std::size_t kPage = 4096;
constexpr std::size_t kRingBytes = kRingSlots * kRingSlotBytes;
constexpr std::size_t kGrantsBytes = kPage;
constexpr std::size_t kHalfBytes = kRingBytes + kGrantsBytes;
static_assert(kRdmaLanes * kGrantsPerLane * kGrantBytes <= kGrantsBytes);

RemotePlace PlaceOf(const std::byte* data, std::uint32_t key) {
  return {reinterpret_cast<std::uintptr_t>(data), key};
}

}  // namespace

Status RdmaEnd::Make(const RdmaEndArgs& args) {
  Rail* const rail = args.rail;
  auto memory = CardMemory::Map(2 * kHalfBytes);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(memory).value();
  std::byte* const written = memory_.data();
  std::byte* const read = written + kHalfBytes;
  auto by_peer =
      Registration::Make(rail->verbs(), rail->pd(), {written, kHalfBytes, {}},
                         CardRights::kPeersMayWrite, "a ring");
  if (!by_peer.ok()) return by_peer.status();
  written_by_peer_ = std::move(by_peer).value();
  auto by_card =
      Registration::Make(rail->verbs(), rail->pd(), {read, kHalfBytes, {}},
                         CardRights::kRead, "a ring");
  if (!by_card.ok()) return by_card.status();
  read_by_card_ = std::move(by_card).value();
  auto pair = QueuePair::Create(rail, args.owner, rail->args().receives);
  if (!pair.ok()) return pair.status();
  pair_ = std::move(pair).value();
  pair_->SetName(StrCat("RDMA of rank ", args.rank, " (", rail->name(),
                        ") to rank ", args.peer, " (", args.address, ")"));
  outbox_ = std::make_unique<Outbox>(
      OutboxArgs{rail, pair_.get(), read, read_by_card_.local_key(),
                 written + kRingBytes, &owed_credits_, args.clock});
  inbox_ = std::make_unique<Inbox>(
      InboxArgs{args.peer, rail, pair_.get(), written, read + kRingBytes,
                read_by_card_.local_key(), &owed_credits_, args.events,
                StrCat("rank ", args.peer, " (", args.address, "): ")});
  return Status();
}

void RdmaEnd::Close() {
  if (inbox_ != nullptr) inbox_->Close();
  pair_.reset();
}

RemotePlace RdmaEnd::ring() const {
  return PlaceOf(memory_.data(), written_by_peer_.remote_key());
}

RemotePlace RdmaEnd::grants() const {
  return PlaceOf(memory_.data() + kRingBytes, written_by_peer_.remote_key());
}

void RdmaEnd::SetPeer(const RemotePlace& ring, const RemotePlace& grants) {
  outbox_->SetPeer(ring);
  inbox_->SetPeer(grants);
}

void RdmaEnd::WriteFirstSlot(std::span<const std::byte> bytes,
                             const RemotePlace& there) {
  std::byte* const from = memory_.data() + kHalfBytes;
  std::copy(bytes.begin(), bytes.end(), from);
  QueuePair::WriteArgs write;
  write.Add(from, bytes.size(), read_by_card_.local_key());
  write.there = there;
  write.immediate = 0;
  write.cookie = 1;
  pair_->Write(write);
  pair_->Flush();
}

std::span<const std::byte> RdmaEnd::first_slot() const {
  return {memory_.data(), kRingSlotBytes};
}

}  // namespace gradientflow
