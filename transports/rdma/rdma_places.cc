#include "transports/rdma/rdma_places.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/rdma_link.h"
#include "transports/rdma/throughput.h"

// What peers write to, and how a message gets there:
//
//   slots, Allocate(), Lend(), Attach() ─> registered with every rail
//   NameOf(), SlotsHere() ─> address and a key per rail ─> the peer, by its
//   link Put() ─> the link predicted to be quickest ─> its outbox ─> the peer's
//   memory a notice from a peer's link ─> the sink, or kept until there is one
namespace gradientflow {

RdmaPlaces::RdmaPlaces(RdmaPlacesArgs args)
    : args_(std::move(args)), peers_(static_cast<std::size_t>(args_.ranks)) {}

Result<std::shared_ptr<RdmaPlaces>> RdmaPlaces::Create(RdmaPlacesArgs args) {
  std::shared_ptr<RdmaPlaces> places(new RdmaPlaces(std::move(args)));
  auto slots = CardMemory::Map(places->args_.slot_bytes);
  if (!slots.ok()) return slots.status();
  places->slots_ = std::move(slots).value();
  GF_RETURN_IF_ERROR(
      places->Register(places->slots(), "slots for placed messages"));
  return places;
}

RdmaPlaces::~RdmaPlaces() {
  for (const auto& [data, memory] : allocated_) Deregister(data);
  Deregister(slots_.data());
}

// With all rails, or with none.
Status RdmaPlaces::Register(BufferView memory, const std::string& what) {
  for (const auto& rail : args_.rails) {
    const Status added =
        rail->reach().Add(rail->verbs(), rail->pd(), memory, what);
    if (added.ok()) continue;
    Deregister(memory.data);
    return added;
  }
  return Status();
}

void RdmaPlaces::Deregister(const std::byte* data) {
  for (const auto& rail : args_.rails) rail->reach().Remove(data);
}

void RdmaPlaces::SetSink(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) {
    for (const Peer& peer : peers_) {
      for (RdmaLink* const link : peer.links) {
        if (link != nullptr) link->ForgetPuts();
      }
    }
    return;
  }
  for (const auto& [peer, notice] : std::exchange(early_, {})) {
    sink->OnNotice(peer, notice);
  }
}

BufferView RdmaPlaces::slots() const {
  return {slots_.data(), args_.slot_bytes, {}};
}

RemotePlace RdmaPlaces::SlotsOf(int peer) const {
  return peers_[static_cast<std::size_t>(peer)].slots;
}

Result<BufferView> RdmaPlaces::Allocate(std::size_t bytes) {
  auto memory = CardMemory::Map(std::max<std::size_t>(bytes, 1));
  if (!memory.ok()) return memory.status();
  const BufferView view = {memory.value().data(), memory.value().bytes(), {}};
  GF_RETURN_IF_ERROR(Register(view, "gradients"));
  allocated_.emplace(view.data, std::move(memory).value());
  return BufferView{view.data, bytes, {}};
}

void RdmaPlaces::Free(BufferView memory) {
  Deregister(memory.data);
  allocated_.erase(memory.data);
}

Status RdmaPlaces::Lend(BufferView memory) {
  return Register(memory, "the gradient pool");
}

void RdmaPlaces::Withdraw(BufferView memory) { Deregister(memory.data); }

Result<std::string> RdmaPlaces::Attach(const DeviceBuffer& buffer) {
  std::string way;
  for (const auto& rail : args_.rails) {
    auto added = rail->reach().AddDevice(rail->verbs(), rail->pd(), buffer);
    if (!added.ok()) {
      Deregister(buffer.memory.data);
      return added;
    }
    way = std::move(added).value();
  }
  return way;
}

void RdmaPlaces::Detach(const std::byte* data) { Deregister(data); }

bool RdmaPlaces::Reaches(const void* data, std::size_t bytes) const {
  return args_.rails.front()->reach().Find(data, bytes) != nullptr;
}

RemotePlace RdmaPlaces::NameOf(const void* data) const {
  RemotePlace place;
  place.address = reinterpret_cast<std::uintptr_t>(data);
  for (std::size_t i = 0; i < args_.rails.size(); ++i) {
    const Registration* const reached = args_.rails[i]->reach().Find(data, 1);
    assert(reached != nullptr);
    place.KeyOf(i) = reached->remote_key();
  }
  return place;
}

RemotePlace RdmaPlaces::SlotsHere(std::size_t rail) const {
  RemotePlace place = NameOf(slots_.data());
  return {place.address, place.KeyOf(rail)};
}

void RdmaPlaces::Put(int peer, std::span<const ConstBufferView> pieces,
                     RemotePlace there, std::uint32_t notice, Done done) {
  const Peer& to = peers_[static_cast<std::size_t>(peer)];
  RdmaLink* const link = to.count > 1 ? Quickest(to, pieces) : to.links.front();
  if (link == nullptr) return;
  assert(pieces.size() <= kMostPutPieces);
  if (link->rail_number() > 0) there.key = there.KeyOf(link->rail_number());
  link->Put(pieces, there, notice, done);
}

RdmaLink* RdmaPlaces::Quickest(const Peer& peer,
                               std::span<const ConstBufferView> pieces) {
  std::size_t bytes = 0;
  for (const ConstBufferView& piece : pieces) bytes += piece.bytes;
  return peer.links[QuickestOf(peer.links, bytes)];
}

void RdmaPlaces::SetLink(int peer, RdmaLink* link, const RemotePlace& slots) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  const std::size_t rail = link->rail_number();
  to.links[rail] = link;
  ++to.count;
  to.slots.address = slots.address;
  to.slots.KeyOf(rail) = slots.key;
}

void RdmaPlaces::DropLink(int peer, std::size_t rail) {
  Peer& of = peers_[static_cast<std::size_t>(peer)];
  if (std::exchange(of.links[rail], nullptr) != nullptr) --of.count;
}

Status RdmaPlaces::KeepNotice(int peer, std::uint32_t notice) {
  const auto kept =
      std::count_if(early_.begin(), early_.end(),
                    [peer](const auto& early) { return early.first == peer; });
  if (kept >= args_.notices) {
    return Status(StatusCode::kDataLoss,
                  StrCat("placed more than ", args_.notices,
                         " messages that this rank has not taken"));
  }
  early_.emplace_back(peer, notice);
  return Status();
}

}  // namespace gradientflow
