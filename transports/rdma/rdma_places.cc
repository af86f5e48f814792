#include "transports/rdma/rdma_places.h"

#include <algorithm>
#include <cassert>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/rdma_link.h"

namespace gradientflow {

RdmaPlaces::RdmaPlaces(RdmaPlacesArgs args)
    : args_(std::move(args)), peers_(static_cast<std::size_t>(args_.ranks)) {}

Result<std::shared_ptr<RdmaPlaces>> RdmaPlaces::Create(RdmaPlacesArgs args) {
  std::shared_ptr<RdmaPlaces> places(new RdmaPlaces(std::move(args)));
  auto slots = CardMemory::Map(places->args_.slot_bytes);
  if (!slots.ok()) return slots.status();
  places->slots_ = std::move(slots).value();
  Rail& rail = *places->args_.rail;
  GF_RETURN_IF_ERROR(rail.reach().Add(rail.verbs(), rail.pd(), places->slots(),
                                      "slots for placed messages"));
  return places;
}

RdmaPlaces::~RdmaPlaces() {
  for (const auto& [data, memory] : allocated_)
    args_.rail->reach().Remove(data);
  args_.rail->reach().Remove(slots_.data());
}

void RdmaPlaces::SetSink(Sink* sink) {
  sink_ = sink;
  if (sink == nullptr) {
    for (const Peer& peer : peers_) {
      if (peer.link != nullptr) peer.link->ForgetPuts();
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
  Rail& rail = *args_.rail;
  GF_RETURN_IF_ERROR(
      rail.reach().Add(rail.verbs(), rail.pd(), view, "gradients"));
  allocated_.emplace(view.data, std::move(memory).value());
  return BufferView{view.data, bytes, {}};
}

void RdmaPlaces::Free(BufferView memory) {
  args_.rail->reach().Remove(memory.data);
  allocated_.erase(memory.data);
}

Status RdmaPlaces::Lend(BufferView memory) {
  Rail& rail = *args_.rail;
  return rail.reach().Add(rail.verbs(), rail.pd(), memory, "the gradient pool");
}

void RdmaPlaces::Withdraw(BufferView memory) {
  args_.rail->reach().Remove(memory.data);
}

Result<std::string> RdmaPlaces::Attach(const DeviceBuffer& buffer) {
  Rail& rail = *args_.rail;
  return rail.reach().AddDevice(rail.verbs(), rail.pd(), buffer);
}

void RdmaPlaces::Detach(const std::byte* data) {
  args_.rail->reach().Remove(data);
}

bool RdmaPlaces::Reaches(const void* data, std::size_t bytes) const {
  return args_.rail->reach().Find(data, bytes) != nullptr;
}

RemotePlace RdmaPlaces::NameOf(const void* data) const {
  const Registration* const reached = args_.rail->reach().Find(data, 1);
  assert(reached != nullptr);
  return {reinterpret_cast<std::uintptr_t>(data), reached->remote_key()};
}

void RdmaPlaces::Put(int peer, std::span<const ConstBufferView> pieces,
                     RemotePlace there, std::uint32_t notice, Done done) {
  RdmaLink* const link = peers_[static_cast<std::size_t>(peer)].link;
  if (link == nullptr) return;
  assert(pieces.size() <= kMostPutPieces);
  link->Put(pieces, there, notice, done);
}

void RdmaPlaces::SetLink(int peer, RdmaLink* link, RemotePlace slots) {
  peers_[static_cast<std::size_t>(peer)] = {link, slots};
}

void RdmaPlaces::DropLink(int peer) {
  peers_[static_cast<std::size_t>(peer)].link = nullptr;
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
