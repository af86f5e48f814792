#include "gradientflow/session/closing_notes.h"

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

void FreeNote(void* note, std::uint64_t, std::uint32_t, const Status&) {
  delete static_cast<std::uint64_t*>(note);
}

}  // namespace

ClosingNotes::ClosingNotes(Fabric& fabric, const CallGroup& group, GroupId id)
    : fabric_(fabric), id_(PointToPointTag(0, 0), id) {
  for (int r = 0; r < group.size; ++r) {
    if (r == group.rank) continue;
    peers_.emplace_back();
    peers_.back().rank = group.FabricRank(r);
  }
}

void ClosingNotes::Send(std::uint64_t steps) {
  for (const Peer& peer : peers_) {
    if (peer.closed || fabric_.HasDeparted(peer.rank)) continue;
    auto* note = new std::uint64_t(steps);
    fabric_.Send(peer.rank, id_,
                 {reinterpret_cast<const std::byte*>(note), sizeof(*note), {}},
                 {}, {&FreeNote, note, 0});
  }
}

void ClosingNotes::OnNote(void* self, std::uint64_t peer, std::uint32_t,
                          const Status& status) {
  auto& notes = *static_cast<ClosingNotes*>(self);
  notes.peers_[peer].closed = status.ok();
  --notes.receiving_;
}

Status ClosingNotes::Check(std::uint64_t steps) {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    if (!peer.asked && fabric_.HasMessage(peer.rank, id_)) {
      peer.asked = true;
      ++receiving_;
      fabric_.Recv(
          peer.rank, id_,
          {reinterpret_cast<std::byte*>(&peer.steps), sizeof(peer.steps), {}},
          0, {&ClosingNotes::OnNote, this, i});
    }
    if (!peer.closed || peer.steps > steps) continue;
    return Status(StatusCode::kUnavailable,
                  StrCat("rank ", peer.rank, " has closed its session after ",
                         peer.steps, " steps, and takes no part in this one"));
  }
  return Status();
}

}  // namespace gradientflow
