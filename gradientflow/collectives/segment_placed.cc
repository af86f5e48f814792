#include "gradientflow/collectives/segment.h"

// Messages that are written where they belong on the peer. In each segment, on
// the p ranks that place them on each other (all ranks, or those of a rail):
//
//   1st round  rank r writes its contribution to block q into a landing of rank
//              q's slot, with a notice. It waits for p - 1 notices.
//   local      Rank q adds all contributions to block q, in rank order.
//   2nd round  Rank q copies the sum to its slot, and writes it from there to
//              where each peer wants it, with a notice. It waits for p - 1.
//
// Segment s of a channel, of those that place anything, is in slot s mod W on
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

// Landings have headers between them.
std::byte* Segment::PlacedScratch(std::size_t elements) const {
  const std::size_t landing = schedule_->scratch_elements /
                              static_cast<std::size_t>(schedule_->placing - 1);
  return placed_->PayloadAt(static_cast<int>(elements / landing)) +
         elements % landing * operation_->wire_bytes();
}

// What all messages of the segment need is looked up once.
void Segment::BeginPlaced() {
  placed_->Begin({args_.on_message, args_.self, Cookie(0, 0)});
  signature_ = PartSignature();
  reached_ = ReachablePart({Slice::Space::kData, 0, count_});
  if (reached_ != nullptr) reached_name_ = placed_->places().NameOf(reached_);
}

// The network gets its work first.
void Segment::PostPlacedRound() {
  const std::vector<Step>& round = steps();
  for (const Step& step : round) {
    if (step.kind != Step::Kind::kSend) continue;
    if (step.there.space == Slice::Space::kScratch) {
      PutContribution(step);
    } else {
      PutSum(step);
    }
  }
  for (const Step& step : round) {
    if (step.kind != Step::Kind::kRecv) continue;
    AwaitPlaced(step, static_cast<std::uint32_t>(&step - round.data()));
    if (!status_.ok()) return;
  }
}

// Returns the elements where they are, if the network reaches them there in
// their wire form; otherwise null.
std::byte* Segment::Reachable(const Slice& slice) const {
  if (reached_ != nullptr) {
    return reached_ + slice.offset * operation_->wire_bytes();
  }
  return ReachablePart(slice);
}

// The same for elements of a segment that is not reached as a whole: it has
// gaps, or memory of several registrations.
std::byte* Segment::ReachablePart(const Slice& slice) const {
  if (operation_->call.direct != nullptr) {
    return operation_->call.direct + Position(slice) * operation_->wire_bytes();
  }
  if (converts()) return nullptr;
  std::byte* const at = data_.Contiguous(Position(slice), slice.count);
  const std::size_t bytes = slice.count * operation_->wire_bytes();
  return at != nullptr && placed_->places().Reaches(at, bytes) ? at : nullptr;
}

// Where a slice of kData begins in what a slot has for all that is placed.
std::size_t Segment::PlacedOffset(const Slice& slice) const {
  return (slice.offset - schedule_->placed_from) * operation_->wire_bytes();
}

// Where the finished block is to land on this rank.
RemotePlace Segment::ResultPlace(const Slice& block) const {
  if (reached_ != nullptr) {
    return reached_name_.At(block.offset * operation_->wire_bytes());
  }
  const std::byte* const at = ReachablePart(block);
  if (at != nullptr) return placed_->places().NameOf(at);
  return placed_->places().NameOf(placed_->results() + PlacedOffset(block));
}

void Segment::PutContribution(const Step& step) {
  const std::size_t bytes = step.src.count * operation_->wire_bytes();
  const std::byte* from = step.raw ? nullptr : Reachable(step.src);
  if (from == nullptr) {
    std::byte* const image = placed_->image() + PlacedOffset(step.src);
    Pack(step, image);
    from = image;
  }
  BytesSent() += bytes;
  // The sum of a block comes back to where the contribution is.
  placed_->PutContribution(
      step.peer, static_cast<int>(step.there.offset / step.there.count),
      {signature_, operation_->sequence, ResultPlace(step.src)},
      {from, bytes, {}});
}

// The first send of the sum settles it, and the others send the same bytes.
void Segment::PutSum(const Step& step) {
  const std::size_t bytes = step.src.count * operation_->wire_bytes();
  if (!step.relay) Pack(step, placed_->sum());
  const bool nonfinite = (flags_ & kFlagNonfinite) != 0 || nonfinite_ != 0;
  BytesSent() += bytes;
  placed_->PutSum(step.peer, placed_->HeaderOf(step.peer).sum, bytes,
                  nonfinite);
}

void Segment::AwaitPlaced(const Step& step, std::uint32_t index) {
  std::uint32_t flags = 0;
  if (placed_->Await(PhaseOf(step), step.peer, index, &flags)) {
    TakePlaced(step, flags);
  } else {
    ++traffic_[round_ % 2].pending;
  }
}

void Segment::OnPlaced(std::uint32_t step, std::uint32_t flags) {
  // Advance() looks for that.
  if (step == PlacedSlot::kPayloadsLeft) return;
  --traffic_[round_ % 2].pending;
  TakePlaced(steps()[step], flags);
}

// What a kRecv awaits is in its place.
void Segment::TakePlaced(const Step& step, std::uint32_t flags) {
  flags_ |= flags & kFlagNonfinite;
  if (PhaseOf(step) == PlacedPhase::kContribution) {
    if (placed_->HeaderOf(step.peer).signature == signature_) return;
    return FailBy(step.peer);
  }
  if (Reachable(step.dst) != nullptr) return;
  Unpack(step.dst, placed_->results() + PlacedOffset(step.dst));
}

// A peer has come to another call.
void Segment::FailBy(int peer) {
  status_ = AnotherCall(peer);
  args_.fabric.Fail(status_);
}

void Segment::AddUnplaced(std::vector<int>* ranks) const {
  for (const Step& step : steps()) {
    if (step.kind == Step::Kind::kRecv &&
        !placed_->HasCome(PhaseOf(step), step.peer)) {
      ranks->push_back(step.peer);
    }
  }
}

}  // namespace gradientflow
