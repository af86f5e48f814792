#include "gradientflow/collectives/placed_side.h"

#include <utility>

// Messages that are written where they belong on the peer. In each segment, on
// the p ranks that place them on each other (all ranks, those of a column, or a
// group):
//
//   1st round  rank r writes its contribution to block q into a landing of rank
//              q's slot, with a notice. It waits for p - 1 notices.
//   local      Rank q adds all contributions to block q, in rank order.
//   2nd round  Rank q copies the sum to its slot, and writes it from there to
//              where each peer wants it, with a notice. It waits for p - 1.
//
// Segment s of a window, of those that place anything, is in slot s mod W on
// all these ranks. No rank asks before it writes:
//   * The landings of rank q in that slot are free once q's sum of segment
//     s - W has come here, since q had read them all before it could send it.
//     A rank ends a segment only with the sums of all peers to which it has
//     contributed, and begins segment s only after s - W. So the window is the
//     flow control.
//   * Rank q's block r may be overwritten with rank r's sum, and so may the
//     room that q has for it among its results. This sum exists only because
//     q's contribution to it has come here: nothing reads that any more.
//   * The sum leaves from a copy. So a call is done after two latencies, and
//     not only when its sums have left: its buffer is given back meanwhile. The
//     slot is used again when they have left. All peers have them by then, as
//     they contribute to segment s + W only after they have ended s.
// Every such segment has elements. So the last rank's block is never empty: all
// ranks contribute to it, and wait for its sum. Hence no rank ends a segment
// that another one has not begun, a notice is early by one segment at most, and
// the signatures of all ranks meet on that rank.
namespace gradientflow {

// What all messages of the segment need is looked up once.
void PlacedSide::Start(PlacedSlot* slot, Done told) {
  slot_ = slot;
  slot_->Begin(told);
  signature_ = data_.Signature();
  reached_ = ReachablePart({Slice::Space::kData, 0, data_.count()});
  if (reached_ != nullptr) reached_name_ = slot_->places().NameOf(reached_);
}

void PlacedSide::Reset() {
  if (slot_ != nullptr) std::exchange(slot_, nullptr)->End();
  pending_ = 0;
}

// The network gets its work first.
void PlacedSide::Post(const std::vector<Action>& round) {
  for (const Action& action : round) {
    if (action.kind != Action::Kind::kSend) continue;
    if (action.there.space == Slice::Space::kScratch) {
      PutContribution(action);
    } else {
      PutSum(action);
    }
  }
  for (const Action& action : round) {
    if (action.kind != Action::Kind::kRecv) continue;
    Await(action, static_cast<std::uint32_t>(&action - round.data()));
    if (!data_.status().ok()) return;
  }
}

std::byte* PlacedSide::ReachablePart(const Slice& slice) const {
  const std::size_t position = data_.Position(slice);
  if (data_.call().direct != nullptr) {
    return data_.call().direct + position * data_.wire_bytes();
  }
  if (data_.converts()) return nullptr;
  std::byte* const at = data_.MemoryOf(slice).Contiguous(position, slice.count);
  const std::size_t bytes = slice.count * data_.wire_bytes();
  return at != nullptr && slot_->places().Reaches(at, bytes) ? at : nullptr;
}

// Where a slice of kData begins in what a slot has for all that is placed.
std::size_t PlacedSide::Offset(const Slice& slice) const {
  return (slice.offset - data_.schedule().placed_from) * data_.wire_bytes();
}

RemotePlace PlacedSide::ResultPart(const Slice& block) const {
  const std::byte* const at = ReachablePart(block);
  if (at != nullptr) return slot_->places().NameOf(at);
  return slot_->places().NameOf(slot_->results() + Offset(block));
}

void PlacedSide::PutContribution(const Action& action) {
  const std::size_t bytes = action.src.count * data_.wire_bytes();
  const std::byte* from = action.raw ? nullptr : Reachable(action.src);
  if (from == nullptr) {
    std::byte* const image = slot_->image() + Offset(action.src);
    data_.Pack(action, image);
    from = image;
  }
  data_.BytesSent() += bytes;
  // The sum of a block comes back to where the contribution is.
  slot_->PutContribution(
      PeerOf(action),
      static_cast<int>(action.there.offset / action.there.count),
      {signature_, data_.operation()->sequence, ResultPlace(action.src)},
      {from, bytes, {}});
}

// The first send of the sum settles it, and the others send the same bytes.
void PlacedSide::PutSum(const Action& action) {
  const std::size_t bytes = action.src.count * data_.wire_bytes();
  if (!action.relay) data_.Pack(action, slot_->sum());
  data_.BytesSent() += bytes;
  const int peer = PeerOf(action);
  slot_->PutSum(peer, slot_->HeaderOf(peer).sum, bytes, data_.flags() != 0);
}

void PlacedSide::Await(const Action& action, std::uint32_t index) {
  std::uint32_t flags = 0;
  if (slot_->Await(PhaseOf(action), PeerOf(action), index, &flags)) {
    Take(action, flags);
  } else {
    ++pending_;
  }
}

void PlacedSide::OnMessage(const std::vector<Action>& round,
                           std::uint32_t action, std::uint32_t flags) {
  --pending_;
  Take(round[action], flags);
}

// What a kRecv awaits is in its place.
void PlacedSide::Take(const Action& action, std::uint32_t flags) {
  data_.AddFlags(flags);
  if (PhaseOf(action) == PlacedPhase::kContribution) {
    const int peer = PeerOf(action);
    if (slot_->HeaderOf(peer).signature == signature_) return;
    data_.Fail(data_.AnotherCall(peer));
    args_.fabric.Fail(data_.status());
    return;
  }
  if (Reachable(action.dst) != nullptr) return;
  data_.Unpack(action.dst, slot_->results() + Offset(action.dst));
}

void PlacedSide::AddAwaited(const std::vector<Action>& round,
                            std::vector<int>* ranks) const {
  for (const Action& action : round) {
    if (action.kind == Action::Kind::kRecv &&
        !slot_->HasCome(PhaseOf(action), PeerOf(action))) {
      ranks->push_back(PeerOf(action));
    }
  }
}

}  // namespace gradientflow
