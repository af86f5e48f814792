#include "gradientflow/collectives/segment.h"

#include <algorithm>
#include <utility>

#include "gradientflow/collectives/local_steps.h"

// How a segment runs its schedule, round by round:
//
//   PostRound()   posts the round's receives, then its sends
//   OnMessage()   a message has ended; a received one is converted if need be
//   Advance()     once no message is pending, runs the round's local steps in
//                 order, then goes to the next round
//
// A received message lands in scratch (to be reduced), in the buffer itself,
// or, if it has to be converted or the buffer has gaps there, in an image of
// wire bytes. data_ knows where elements are (segment_data.h). shared_ runs the
// steps on shared memory, and placed_ the messages that are placed.
namespace gradientflow {
namespace {

bool Same(const Slice& a, const Slice& b) {
  return a.space == b.space && a.offset == b.offset && a.count == b.count;
}

}  // namespace

void Segment::Start(Operation* operation, std::uint64_t index, Extent part,
                    std::shared_ptr<const Schedule> schedule,
                    const Means& means) {
  data_.Start(operation, index, part, std::move(schedule), means.placed);
  const auto ranks = static_cast<std::size_t>(operation->group->size);
  sent_.assign(ranks, 0);
  received_.assign(ranks, 0);
  shared_.Start(means.first_sync);
  if (means.placed != nullptr) {
    placed_.Start(means.placed, {args_.on_message, args_.self, Cookie(0, 0)});
  }
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
  placed_.Reset();
  shared_.Reset();
  data_.Reset();
  done_ = false;
  round_ = 0;
  posted_ = false;
  local_ = 0;
  encoded_.clear();
}

std::byte* Segment::NewSlot(std::size_t bytes, std::size_t round) {
  std::vector<Slabs::Slab>& slots = traffic_[round % 2].slots;
  slots.push_back(args_.slabs.Take(bytes));
  return slots.back().data();
}

std::uint64_t Segment::Cookie(std::uint32_t step, std::size_t round) const {
  return std::uint64_t{slot_} << 32 | (round % 2) << 31 | step;
}

MessageId Segment::NextId(std::vector<std::uint16_t>* ordinals, int peer) {
  const Operation& operation = *data_.operation();
  const Tag tag =
      CallTag(static_cast<int>(operation.call.channel), operation.sequence,
              data_.index(), (*ordinals)[peer]++);
  return {tag, operation.group->id};
}

// A step on shared memory may have to wait for a peer, or may take several
// turns. It then returns false and runs again at the next Advance().
bool Segment::Advance(int looks) {
  if (done_ || idle() || !status().ok()) return false;
  bool moved = false;
  while (round_ < data_.schedule().rounds.size()) {
    if (!posted_) {
      posted_ = true;
      PostRound();
      moved = true;
    }
    if (awaits_messages()) return moved;
    const std::vector<Step>& round = steps();
    for (; local_ < round.size(); ++local_) {
      if (round[local_].is_message()) continue;  // Has ended.
      const std::uint64_t before = shared_.moves();
      if (!RunLocal(round[local_], looks)) {
        return moved || shared_.moves() != before;
      }
      moved = true;
    }
    NextRound();
  }
  return Finish() || moved;
}

// Returns whether the segment has ended. It has not while the network still
// reads from the call's buffer.
bool Segment::Finish() {
  if (placed_.lends()) return false;
  if (placed_.active()) placed_.CheckAllAwaited();
  if (!status().ok()) return true;
  shared_.Finish();
  done_ = true;
  return true;
}

bool Segment::RunLocal(const Step& step, int looks) {
  switch (step.kind) {
    case Step::Kind::kSync:
    case Step::Kind::kPull:
    case Step::Kind::kPullReduce:
    case Step::Kind::kPush:
      return shared_.Run(step, looks);
    default:
      RunLocalStep(step, args_.kernels, &data_);
      return true;
  }
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
  const std::vector<Step>& round_steps = data_.schedule().rounds[round];
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
  const CollectiveAlgorithm* algorithm = data_.operation()->plan.algorithm;
  const auto& rounds = data_.schedule().rounds;
  if (algorithm == nullptr || !algorithm->receives_early ||
      round_ + 1 == rounds.size()) {
    return;
  }
  const std::vector<Step>& next = rounds[round_ + 1];
  const bool into_scratch =
      std::any_of(next.begin(), next.end(), [](const Step& step) {
        return step.kind == Step::Kind::kRecv &&
               step.dst.space == Slice::Space::kScratch;
      });
  // This round still uses the scratch memory.
  if (!into_scratch) PostReceives(round_ + 1);
}

void Segment::PostRound() {
  if (placed_.active()) return placed_.Post(steps());
  // Receives go first, so that what arrives finds its place.
  PostReceives(round_);
  PostEarlyReceives();
  const Operation& operation = *data_.operation();
  for (std::uint32_t i = 0; i < steps().size(); ++i) {
    const Step& step = steps()[i];
    if (step.kind != Step::Kind::kSend || step.src.count == 0) continue;
    const std::size_t bytes = step.src.count * operation.wire_bytes();
    const std::byte* wire = WireImage(step);
    ++traffic_[round_ % 2].pending;
    data_.BytesSent() += bytes;
    args_.fabric.Send(operation.group->FabricRank(step.peer),
                      NextId(&sent_, step.peer), {wire, bytes, {}},
                      {operation.signature, data_.flags()},
                      {args_.on_message, args_.self, Cookie(i, round_)});
  }
}

void Segment::PostRecv(const Step& step, std::uint32_t index,
                       std::size_t round) {
  const Operation& operation = *data_.operation();
  const std::size_t bytes = step.dst.count * operation.wire_bytes();
  std::byte* landing = nullptr;
  if (step.dst.space == Slice::Space::kScratch) {
    landing = data_.Scratch(step.dst.offset);
  } else {
    if (!data_.converts()) {
      landing = data_.MemoryOf(step.dst).Contiguous(data_.Position(step.dst),
                                                    step.dst.count);
    }
    if (landing == nullptr) {
      landing =
          data_.converts() ? data_.Image(step.dst) : NewSlot(bytes, round);
      traffic_[round % 2].decodes.push_back({index, landing});
    }
  }
  ++traffic_[round % 2].pending;
  args_.fabric.Recv(operation.group->FabricRank(step.peer),
                    NextId(&received_, step.peer), {landing, bytes, {}},
                    operation.signature,
                    {args_.on_message, args_.self, Cookie(index, round)});
}

// Returns the bytes that travel for a kSend: those of the buffer itself, or a
// converted copy that all sends of the slice in this round share.
const std::byte* Segment::WireImage(const Step& step) {
  if (step.relay && data_.converts()) return data_.Image(step.src);
  const std::size_t count = step.src.count;
  const float scale = step.raw ? data_.operation()->pre : 1.0F;
  if (!data_.converts() && scale == 1.0F) {
    const std::byte* direct =
        data_.MemoryOf(step.src).Contiguous(data_.Position(step.src), count);
    if (direct != nullptr) return direct;
  }
  for (const Encoded& encoded : encoded_) {
    if (Same(encoded.slice, step.src)) return encoded.wire;
  }
  const bool result = step.last && data_.converts();
  std::byte* wire = result ? data_.Image(step.src)
                           : NewSlot(count * data_.wire_bytes(), round_);
  data_.Pack(step, wire);
  encoded_.push_back({step.src, wire});
  return wire;
}

void Segment::OnMessage(std::uint32_t step, std::uint32_t flags) {
  if (placed_.active()) {
    // Payloads may leave only after the last round; Finish() looks for that.
    if (step == PlacedSlot::kPayloadsLeft) return;
    return placed_.OnMessage(steps(), step, flags);
  }
  const std::size_t parity = step >> 31;
  const std::uint32_t index = step & 0x7FFFFFFF;
  const std::size_t round = round_ % 2 == parity ? round_ : round_ + 1;
  Traffic& traffic = traffic_[parity];
  --traffic.pending;
  data_.AddFlags(flags);
  for (const Decode& decode : traffic.decodes) {
    if (decode.step != index) continue;
    data_.Unpack(data_.schedule().rounds[round][index].dst, decode.wire);
  }
}

void Segment::AddAwaited(std::vector<int>* ranks) const {
  if (round_ == data_.schedule().rounds.size()) return;
  if (placed_.active()) placed_.AddAwaited(steps(), ranks);
  shared_.AddAwaited(ranks);
}

}  // namespace gradientflow
