#include "gradientflow/collectives/segment.h"

#include <algorithm>
#include <utility>

#include "gradientflow/collectives/local_actions.h"

// How a segment runs its schedule, round by round:
//
//   PostRound()   posts the round's receives, then its sends
//   OnMessage()   a message has ended; a received one is converted if need be
//   Advance()     once no message is pending, runs the round's local actions in
//                 order, then goes to the next round
//
// A received message lands in scratch (to be reduced), in the buffer itself,
// or, if it has to be converted or the buffer has gaps there, in an image of
// wire bytes. data_ knows where elements are (segment_data.h). shared_ runs the
// actions on shared memory, and placed_ the messages that are placed.
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

std::uint64_t Segment::Cookie(std::uint32_t action, std::size_t round) const {
  return std::uint64_t{slot_} << 32 | (round % 2) << 31 | action;
}

MessageId Segment::NextId(std::vector<std::uint16_t>* ordinals, int peer) {
  const Operation& operation = *data_.operation();
  const Tag tag =
      CallTag(static_cast<int>(operation.call.channel), operation.sequence,
              data_.index(), (*ordinals)[peer]++);
  return {tag, operation.group->id};
}

// An action on shared memory may have to wait for a peer, or may take several
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
    const std::vector<Action>& round = actions();
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

bool Segment::RunLocal(const Action& action, int looks) {
  switch (action.kind) {
    case Action::Kind::kSync:
    case Action::Kind::kPull:
    case Action::Kind::kPullReduce:
    case Action::Kind::kPush:
      return shared_.Run(action, looks);
    default:
      RunLocalAction(action, args_.kernels, &data_);
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
  const std::vector<Action>& round_actions = data_.schedule().rounds[round];
  for (std::uint32_t i = 0; i < round_actions.size(); ++i) {
    const Action& action = round_actions[i];
    if (action.kind == Action::Kind::kRecv && action.dst.count > 0) {
      PostRecv(action, i, round);
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
  const std::vector<Action>& next = rounds[round_ + 1];
  const bool into_scratch =
      std::any_of(next.begin(), next.end(), [](const Action& action) {
        return action.kind == Action::Kind::kRecv &&
               action.dst.space == Slice::Space::kScratch;
      });
  // This round still uses the scratch memory.
  if (!into_scratch) PostReceives(round_ + 1);
}

void Segment::PostRound() {
  if (placed_.active()) return placed_.Post(actions());
  // Receives go first, so that what arrives finds its place.
  PostReceives(round_);
  PostEarlyReceives();
  const Operation& operation = *data_.operation();
  for (std::uint32_t i = 0; i < actions().size(); ++i) {
    const Action& action = actions()[i];
    if (action.kind != Action::Kind::kSend || action.src.count == 0) continue;
    const std::size_t bytes = action.src.count * operation.wire_bytes();
    const std::byte* wire = WireImage(action);
    ++traffic_[round_ % 2].pending;
    data_.BytesSent() += bytes;
    args_.fabric.Send(operation.group->FabricRank(action.peer),
                      NextId(&sent_, action.peer), {wire, bytes, {}},
                      {operation.signature, data_.flags()},
                      {args_.on_message, args_.self, Cookie(i, round_)});
  }
}

void Segment::PostRecv(const Action& action, std::uint32_t index,
                       std::size_t round) {
  const Operation& operation = *data_.operation();
  const std::size_t bytes = action.dst.count * operation.wire_bytes();
  std::byte* landing = nullptr;
  if (action.dst.space == Slice::Space::kScratch) {
    landing = data_.Scratch(action.dst.offset);
  } else {
    if (!data_.converts()) {
      landing = data_.MemoryOf(action.dst)
                    .Contiguous(data_.Position(action.dst), action.dst.count);
    }
    if (landing == nullptr) {
      landing =
          data_.converts() ? data_.Image(action.dst) : NewSlot(bytes, round);
      traffic_[round % 2].decodes.push_back({index, landing});
    }
  }
  ++traffic_[round % 2].pending;
  args_.fabric.Recv(operation.group->FabricRank(action.peer),
                    NextId(&received_, action.peer), {landing, bytes, {}},
                    operation.signature,
                    {args_.on_message, args_.self, Cookie(index, round)});
}

// Returns the bytes that travel for a kSend: those of the buffer itself, or a
// converted copy that all sends of the slice in this round share.
const std::byte* Segment::WireImage(const Action& action) {
  if (action.relay && data_.converts()) return data_.Image(action.src);
  const std::size_t count = action.src.count;
  const float scale = action.raw ? data_.operation()->pre : 1.0F;
  if (!data_.converts() && scale == 1.0F) {
    const std::byte* direct =
        data_.MemoryOf(action.src)
            .Contiguous(data_.Position(action.src), count);
    if (direct != nullptr) return direct;
  }
  for (const Encoded& encoded : encoded_) {
    if (Same(encoded.slice, action.src)) return encoded.wire;
  }
  const bool result = action.last && data_.converts();
  std::byte* wire = result ? data_.Image(action.src)
                           : NewSlot(count * data_.wire_bytes(), round_);
  data_.Pack(action, wire);
  encoded_.push_back({action.src, wire});
  return wire;
}

void Segment::OnMessage(std::uint32_t action, std::uint32_t flags) {
  if (placed_.active()) {
    // Payloads may still be leaving after the last round; Finish() looks for
    // that.
    if (action == PlacedSlot::kPayloadsLeft) return;
    return placed_.OnMessage(actions(), action, flags);
  }
  const std::size_t parity = action >> 31;
  const std::uint32_t index = action & 0x7FFFFFFF;
  const std::size_t round = round_ % 2 == parity ? round_ : round_ + 1;
  Traffic& traffic = traffic_[parity];
  --traffic.pending;
  data_.AddFlags(flags);
  for (const Decode& decode : traffic.decodes) {
    if (decode.action != index) continue;
    data_.Unpack(data_.schedule().rounds[round][index].dst, decode.wire);
  }
}

void Segment::AddAwaited(std::vector<int>* ranks) const {
  if (round_ == data_.schedule().rounds.size()) return;
  if (placed_.active()) placed_.AddAwaited(actions(), ranks);
  shared_.AddAwaited(ranks);
}

}  // namespace gradientflow
