#include "gradientflow/collectives/segment.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How a segment runs its schedule, round by round:
//
//   PostRound()   posts the round's receives, then its sends
//   OnMessage()   a message has ended; a received one is converted if need be
//   Advance()     once no message is pending, runs the round's local steps in
//                 order, then goes to the next round
//
// A received message lands in scratch (to be reduced), in the buffer itself,
// or, if it has to be converted or the buffer has gaps there, in an image of
// wire bytes. The local steps are in segment_local.cc, those on shared memory
// in segment_shared.cc, and messages that are placed in segment_placed.cc.
namespace gradientflow {
namespace {

bool Same(const Slice& a, const Slice& b) {
  return a.space == b.space && a.offset == b.offset && a.count == b.count;
}

}  // namespace

Segment::~Segment() {
  if (bounce_.data != nullptr) args_.arena->Free(bounce_);
}

void Segment::Start(Operation* operation, std::uint64_t index, Extent part,
                    std::shared_ptr<const Schedule> schedule,
                    const Means& means) {
  operation_ = operation;
  index_ = index;
  begin_ = part.begin;
  count_ = part.count;
  schedule_ = std::move(schedule);
  first_sync_ = sync_ = means.first_sync;
  placed_ = means.placed;
  data_ = operation->data;
  dtype_ = shown_dtype_ = operation->call.dtype;
  data_begin_ = begin_;
  const auto ranks = static_cast<std::size_t>(operation->group->size);
  sent_.assign(ranks, 0);
  received_.assign(ranks, 0);
  if (schedule_->scratch_elements > 0 && placed_ == nullptr) {
    scratch_ =
        args_.slabs.Take(schedule_->scratch_elements * operation->wire_bytes());
    scratch_elements_ = Elements(scratch_.data(), operation->wire_bytes());
  }
  if (operation->plan.one_sided && !schedule_->rounds.empty() && ranks > 1) {
    Stage();
  }
  if (placed_ != nullptr) BeginPlaced();
}

void Segment::Reset() {
  for (Traffic& traffic : traffic_) {
    for (Slabs::Slab& slab : traffic.slots) {
      args_.slabs.Give(std::move(slab));
    }
    traffic.slots.clear();
    traffic.decodes.clear();
    traffic.receives_posted = false;
    traffic.pending = 0;
  }
  args_.slabs.Give(std::exchange(scratch_, Slabs::Slab()));
  args_.slabs.Give(std::exchange(image_, Slabs::Slab()));
  if (placed_ != nullptr) std::exchange(placed_, nullptr)->End();
  operation_ = nullptr;
  schedule_.reset();
  done_ = false;
  status_ = Status();
  flags_ = 0;
  nonfinite_ = 0;
  round_ = 0;
  posted_ = false;
  local_ = 0;
  encoded_.clear();
  published_ = false;
  pulled_ = 0;
  shared_.clear();
  shown_ = nullptr;
  copied_ = false;
  staged_ = false;
}

// Whether the call's buffer has a block per rank.
bool Segment::IsBlocked(Slice::Space space) const {
  const CallPlan& plan = operation_->plan;
  return space == Slice::Space::kInput ? plan.blocked_input : plan.blocked_data;
}

// Returns where a slice of this segment's schedule begins in the call's buffer.
std::size_t Segment::PositionInCall(const Slice& slice) const {
  if (!IsBlocked(slice.space)) return begin_ + slice.offset;
  return slice.offset / count_ * operation_->plan.count + begin_ +
         slice.offset % count_;
}

// The same in the memory that MemoryOf() returns.
std::size_t Segment::Position(const Slice& slice) const {
  if (slice.space == Slice::Space::kScratch) return slice.offset;
  const bool moved =
      slice.space == Slice::Space::kData && data_begin_ != begin_;
  return moved ? data_begin_ + slice.offset : PositionInCall(slice);
}

const Elements& Segment::MemoryOf(const Slice& slice) const {
  if (slice.space == Slice::Space::kScratch) return scratch_elements_;
  return slice.space == Slice::Space::kInput ? operation_->input : data_;
}

std::byte* Segment::Scratch(std::size_t elements) const {
  if (placed_ != nullptr) return PlacedScratch(elements);
  return scratch_.data() + elements * operation_->wire_bytes();
}

std::byte* Segment::NewSlot(std::size_t bytes, std::size_t round) {
  std::vector<Slabs::Slab>& slots = traffic_[round % 2].slots;
  slots.push_back(args_.slabs.Take(bytes));
  return slots.back().data();
}

// Returns where the results of an allreduce that converts are kept in their
// wire form, from when they arrive or are settled until the segment ends.
// Results that are passed on are sent from here, so that they need no second
// conversion.
std::byte* Segment::Image(const Slice& slice) {
  if (image_.empty()) {
    image_ = args_.slabs.Take(count_ * operation_->wire_bytes());
  }
  return image_.data() + slice.offset * operation_->wire_bytes();
}

// Names the call and the segment to peers that come to it.
std::uint64_t Segment::PartSignature() const {
  return MixHash(MixHash(operation_->signature, operation_->sequence), index_);
}

Status Segment::AnotherCall(int rank) const {
  const CollectiveCall& call = operation_->call;
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("rank ", rank, " came to another call than rank ",
             args_.fabric.rank(), ": ", Name(call.kind), " ",
             operation_->sequence, " of ", call.count, " ", Name(call.dtype),
             ", step ", call.step, " bucket ", call.bucket,
             "; kind, dtype, operation, count, step or place in the "
             "pool differ"));
}

// Identifies a message to OnMessage(): the segment's slot, the parity of the
// round, and the index of the schedule step.
std::uint64_t Segment::Cookie(std::uint32_t step, std::size_t round) const {
  return std::uint64_t{slot_} << 32 | (round % 2) << 31 | step;
}

MessageId Segment::NextId(std::vector<std::uint16_t>* ordinals, int peer) {
  const Tag tag = CallTag(static_cast<int>(operation_->call.channel),
                          operation_->sequence, index_, (*ordinals)[peer]++);
  return {tag, operation_->group->id};
}

// A step on shared memory may have to wait for a peer, or may take several
// turns. It then returns false and runs again at the next Advance().
bool Segment::Advance(int looks) {
  if (done_ || operation_ == nullptr || !status_.ok()) return false;
  bool moved = false;
  while (round_ < schedule_->rounds.size()) {
    if (!posted_) {
      posted_ = true;
      PostRound();
      moved = true;
    }
    if (awaits_messages()) return moved;
    const std::vector<Step>& round = steps();
    for (; local_ < round.size(); ++local_) {
      if (round[local_].is_message()) continue;  // Has ended.
      const std::size_t pulled = pulled_;
      const bool published = published_;
      if (!RunLocal(round[local_], looks)) {
        return moved || pulled != pulled_ || published != published_;
      }
      moved = true;
    }
    NextRound();
  }
  if (placed_ != nullptr && placed_->lends_payloads()) return moved;
  if (placed_ != nullptr) status_ = placed_->CheckAllAwaited();
  if (!status_.ok()) return true;
  if (staged_) Unstage();
  if (nonfinite_ != 0) flags_ |= kFlagNonfinite;
  done_ = true;
  return true;
}

void Segment::NextRound() {
  Traffic& over = traffic_[round_ % 2];
  for (Slabs::Slab& slab : over.slots) args_.slabs.Give(std::move(slab));
  over.slots.clear();
  over.decodes.clear();
  over.receives_posted = false;
  encoded_.clear();
  local_ = 0;
  posted_ = false;
  ++round_;
}

void Segment::PostReceives(std::size_t round) {
  Traffic& traffic = traffic_[round % 2];
  if (traffic.receives_posted) return;
  traffic.receives_posted = true;
  const std::vector<Step>& round_steps = schedule_->rounds[round];
  for (std::uint32_t i = 0; i < round_steps.size(); ++i) {
    const Step& step = round_steps[i];
    if (step.kind == Step::Kind::kRecv && step.dst.count > 0) {
      PostRecv(step, i, round);
    }
  }
}

// Posts the receives of the next round into the buffer if they may be posted
// already, so that data that arrives early lands where it belongs and needs no
// copy.
void Segment::PostEarlyReceives() {
  const CollectiveAlgorithm* algorithm = operation_->plan.algorithm;
  if (algorithm == nullptr || !algorithm->receives_early ||
      round_ + 1 == schedule_->rounds.size()) {
    return;
  }
  const std::vector<Step>& next = schedule_->rounds[round_ + 1];
  const bool into_scratch =
      std::any_of(next.begin(), next.end(), [](const Step& step) {
        return step.kind == Step::Kind::kRecv &&
               step.dst.space == Slice::Space::kScratch;
      });
  // This round still uses the scratch memory.
  if (!into_scratch) PostReceives(round_ + 1);
}

void Segment::PostRound() {
  if (placed_ != nullptr) return PostPlacedRound();
  // Receives go first, so that what arrives finds its place.
  PostReceives(round_);
  PostEarlyReceives();
  for (std::uint32_t i = 0; i < steps().size(); ++i) {
    const Step& step = steps()[i];
    if (step.kind != Step::Kind::kSend || step.src.count == 0) continue;
    const std::size_t bytes = step.src.count * operation_->wire_bytes();
    const std::byte* wire = WireImage(step);
    const bool nonfinite = (flags_ & kFlagNonfinite) != 0 || nonfinite_ != 0;
    ++traffic_[round_ % 2].pending;
    BytesSent() += bytes;
    args_.fabric.Send(operation_->group->FabricRank(step.peer),
                      NextId(&sent_, step.peer), {wire, bytes, {}},
                      {operation_->signature, nonfinite ? kFlagNonfinite : 0},
                      {args_.on_message, args_.self, Cookie(i, round_)});
  }
}

void Segment::PostRecv(const Step& step, std::uint32_t index,
                       std::size_t round) {
  const std::size_t bytes = step.dst.count * operation_->wire_bytes();
  std::byte* landing = nullptr;
  if (step.dst.space == Slice::Space::kScratch) {
    landing = Scratch(step.dst.offset);
  } else {
    if (!converts()) {
      landing = data_.Contiguous(Position(step.dst), step.dst.count);
    }
    if (landing == nullptr) {
      landing = converts() ? Image(step.dst) : NewSlot(bytes, round);
      traffic_[round % 2].decodes.push_back({index, landing});
    }
  }
  ++traffic_[round % 2].pending;
  args_.fabric.Recv(operation_->group->FabricRank(step.peer),
                    NextId(&received_, step.peer), {landing, bytes, {}},
                    operation_->signature,
                    {args_.on_message, args_.self, Cookie(index, round)});
}

// Returns the bytes that travel for a kSend: those of the buffer itself, or a
// converted copy that all sends of the slice in this round share.
const std::byte* Segment::WireImage(const Step& step) {
  if (step.relay && converts()) return Image(step.src);
  const Elements& memory = MemoryOf(step.src);
  const std::size_t begin = Position(step.src);
  const std::size_t count = step.src.count;
  const float scale = step.raw ? operation_->pre : 1.0F;
  if (!converts() && scale == 1.0F) {
    const std::byte* direct = memory.Contiguous(begin, count);
    if (direct != nullptr) return direct;
  }
  for (const Encoded& encoded : encoded_) {
    if (Same(encoded.slice, step.src)) return encoded.wire;
  }
  const bool result = step.last && converts();
  std::byte* wire = result ? Image(step.src)
                           : NewSlot(count * operation_->wire_bytes(), round_);
  Pack(step, wire);
  encoded_.push_back({step.src, wire});
  return wire;
}

// Writes what a kSend sends to `wire`, and settles the data if the step does.
void Segment::Pack(const Step& step, std::byte* wire) {
  const DType to = operation_->call.wire;
  const float scale = step.raw ? operation_->pre : 1.0F;
  const bool settle = step.settle && (converts() || scale != 1.0F);
  MemoryOf(step.src).ForEachRun(
      Position(step.src), step.src.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        args_.kernels.convert(
            {run, dtype_, wire + offset * operation_->wire_bytes(), to,
             settle ? run : nullptr, n, scale,
             nonfinite(step.settle && converts()),
             step.last ? Unscale() : 1.0F},
            nullptr);
      });
}

// Writes a result that has come in its wire form to the data.
void Segment::Unpack(const Slice& dst, const std::byte* wire) {
  const DType from = operation_->call.wire;
  data_.ForEachRun(Position(dst), dst.count,
                   [&](std::byte* run, std::size_t n, std::size_t offset) {
                     args_.kernels.convert(
                         {wire + offset * operation_->wire_bytes(), from, run,
                          dtype_, nullptr, n, Unscale(), nonfinite(converts())},
                         nullptr);
                   });
}

void Segment::OnMessage(std::uint32_t step, std::uint32_t flags) {
  if (placed_ != nullptr) return OnPlaced(step, flags);
  const std::size_t parity = step >> 31;
  const std::uint32_t index = step & 0x7FFFFFFF;
  const std::size_t round = round_ % 2 == parity ? round_ : round_ + 1;
  Traffic& traffic = traffic_[parity];
  --traffic.pending;
  flags_ |= flags & kFlagNonfinite;
  for (const Decode& decode : traffic.decodes) {
    if (decode.step != index) continue;
    Unpack(schedule_->rounds[round][index].dst, decode.wire);
  }
}

}  // namespace gradientflow
