#include "transports/rdma/inbox.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// Credits go with whatever is written. If nothing is, they go alone when half
// of the ring is free.
constexpr int kMostOwedCredits = kRingSlots / 2;
// What a grant has room for. The writer divides it into what its device writes
// at once.
constexpr std::uint64_t kMostGranted = std::uint64_t{1} << 30;

}  // namespace

Status Inbox::OnFrame(int index, std::uint32_t bytes, bool filled) {
  if (filled) {
    GF_RETURN_IF_ERROR(OnPiece(index));
    if (closed_) return Status();
  }
  const std::byte* const frame =
      args_.ring +
      static_cast<std::size_t>(frames_++ % kRingSlots) * kRingSlotBytes;
  if (bytes < kHeaderBytes || bytes > kRingSlotBytes) {
    return Status(
        StatusCode::kDataLoss,
        StrCat(args_.who, "sent a frame of ", bytes, " bytes, expected ",
               kHeaderBytes, " to ", kRingSlotBytes));
  }
  if (held_ + *args_.owed_credits >= kRingSlots) {
    return Status(
        StatusCode::kDataLoss,
        StrCat(args_.who, "sent a frame, expected none before one of ",
               kRingSlots, " slots of its ring is given back"));
  }
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  if (lane.in_message) {
    return Status(StatusCode::kDataLoss,
                  StrCat(args_.who, "sent a frame in lane ", index,
                         ", expected the pieces of the message before it"));
  }
  bool taken = false;
  if (!lane.paused && lane.held.empty()) {
    GF_RETURN_IF_ERROR(Take(index, frame, bytes, &taken));
  }
  // Its credit is owed when it has been taken, so there are never more held
  // frames than the ring has slots.
  if (taken || closed_) return Status();
  lane.held.emplace_back(frame, frame + bytes);
  ++held_;
  return Status();
}

// What tells of ranks comes over the control link. There is one place for
// control messages of a peer, so these come in one lane.
Status Inbox::CheckKind(int lane, MessageKind kind) const {
  if (!IsControl(kind) || (lane == 0 && !IsOfRanks(kind))) return Status();
  return Status(
      StatusCode::kDataLoss,
      StrCat(args_.who, "sent a control message of kind ",
             static_cast<int>(kind), " by RDMA in lane ", lane,
             ", expected it ", IsOfRanks(kind) ? "by TCP" : "in lane 0"));
}

// Sets *taken to whether the message has begun; if not, its lane is paused.
Status Inbox::Take(int index, const std::byte* frame, std::size_t bytes,
                   bool* taken) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  // A copy, since the peer could change the ring between check and use.
  std::array<std::byte, kHeaderBytes> copy;
  std::copy_n(frame, copy.size(), copy.begin());
  const auto header = DecodeHeader(copy);
  if (!header.ok()) {
    return Status(header.status().code(),
                  StrCat(args_.who, "sent a frame that is none: ",
                         header.status().message()));
  }
  GF_RETURN_IF_ERROR(CheckKind(index, header.value().kind));
  const std::uint64_t payload = header.value().payload_bytes;
  const bool is_long = payload > kRingPayloadBytes;
  if (bytes != kHeaderBytes + (is_long ? 0 : payload)) {
    return Status(StatusCode::kDataLoss,
                  StrCat(args_.who, "sent a frame of ", bytes,
                         " bytes for a message of ", payload));
  }
  const auto landing =
      args_.events->OnHeader(args_.peer, index, header.value());
  if (closed_) return Status();
  if (!landing.ok()) return landing.status();
  lane.paused = landing.value().paused;
  *taken = !lane.paused;
  if (lane.paused) return Status();
  if (++*args_.owed_credits >= kMostOwedCredits) MayPush();
  if (is_long) {
    lane.in_message = true;
    lane.header = header.value();
    lane.landing = landing.value().data;
    lane.granted = lane.arrived = 0;
    GiveGrants(index);
    return Status();
  }
  if (payload > 0) {
    std::memcpy(landing.value().data, frame + kHeaderBytes, payload);
  }
  args_.events->OnMessage(args_.peer, index, header.value());
  return Status();
}

void Inbox::GiveGrants(int index) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  const std::uint64_t payload = lane.header.payload_bytes;
  while (lane.granted < payload && lane.count < kGrantsPerLane) {
    if (args_.pair->room() == 0) {
      to_push_ = needs_room_ = true;
      args_.rail->landings().Leave(this);
      return;
    }
    std::byte* const there = lane.landing + lane.granted;
    const std::uint64_t left = payload - lane.granted;
    const Registration* const reached =
        args_.rail->reach().Find(lane.landing, payload);
    CardSlots& slots = args_.rail->landings();
    Given given;
    RemotePlace place;
    if (reached != nullptr) {
      given.bytes = static_cast<std::uint32_t>(std::min(left, kMostGranted));
      place = {reinterpret_cast<std::uintptr_t>(there), reached->remote_key()};
    } else {
      const std::optional<CardSlots::Slot> slot = slots.Take(this);
      if (!slot) {
        to_push_ = needs_slot_ = true;
        return;
      }
      given.slot = *slot;
      given.bytes = static_cast<std::uint32_t>(
          std::min<std::uint64_t>(left, slots.slot_bytes()));
      place = {reinterpret_cast<std::uintptr_t>(given.slot.data),
               given.slot.remote_key};
    }
    lane.granted += given.bytes;
    lane.given[static_cast<std::size_t>((lane.first + lane.count++) %
                                        kGrantsPerLane)] = given;
    SendGrant(index, place, given.bytes);
  }
}

void Inbox::SendGrant(int index, RemotePlace there, std::uint32_t bytes) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  const std::size_t place = static_cast<std::size_t>(index) * kGrantsPerLane +
                            static_cast<std::size_t>(lane.next_grant);
  lane.next_grant = (lane.next_grant + 1) % kGrantsPerLane;
  std::byte* const from = args_.grants + place * kGrantBytes;
  Encode(Grant{there, bytes}, from);
  Immediate immediate;
  immediate.kind = ImmediateKind::kGrant;
  immediate.lane = index;
  immediate.grant = true;
  immediate.credits = std::exchange(*args_.owed_credits, 0);
  QueuePair::WriteArgs write;
  write.Add(from, kGrantBytes, args_.grants_key);
  write.there = peer_grants_.At(place * kGrantBytes);
  write.immediate = Encode(immediate);
  args_.pair->Write(write);
  ++args_.rail->stats().grants;
  ++args_.rail->stats().control_writes;
}

Status Inbox::OnPiece(int index) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  if (lane.count == 0) {
    return Status(StatusCode::kDataLoss,
                  StrCat(args_.who, "has filled a grant in lane ", index,
                         ", expected none to be left"));
  }
  const Given given = lane.given[static_cast<std::size_t>(lane.first)];
  lane.first = (lane.first + 1) % kGrantsPerLane;
  --lane.count;
  if (given.slot.index >= 0) {
    std::memcpy(lane.landing + lane.arrived, given.slot.data, given.bytes);
    args_.rail->landings().Give(given.slot.index);
  }
  lane.arrived += given.bytes;
  if (lane.arrived < lane.header.payload_bytes) {
    // If lanes wait for slots, this one has its turn with them.
    if (needs_slot_ && given.slot.index >= 0) {
      to_push_ = true;
    } else {
      GiveGrants(index);
    }
    return Status();
  }
  lane.in_message = false;
  if (!lane.held.empty()) MayPush();
  args_.events->OnMessage(args_.peer, index, lane.header);
  return Status();
}

void Inbox::Resume(int index) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  lane.paused = false;
  if (!lane.held.empty()) MayPush();
}

Status Inbox::TakeHeld(int index, bool* moved) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  while (!lane.paused && !lane.in_message && !lane.held.empty() && !closed_) {
    const std::vector<std::byte> frame = std::move(lane.held.front());
    lane.held.pop_front();
    bool taken = false;
    GF_RETURN_IF_ERROR(Take(index, frame.data(), frame.size(), &taken));
    if (taken) --held_;
    if (!taken && !closed_) lane.held.push_front(frame);
    *moved |= taken;
  }
  return Status();
}

Status Inbox::Push(bool* moved) {
  if (!to_push_ || closed_) return Status();
  to_push_ = needs_room_ = needs_slot_ = false;
  // Each lane comes first in turn, for the same reason as each link does.
  first_lane_ = (first_lane_ + 1) % kRdmaLanes;
  for (int i = 0; i < kRdmaLanes && !closed_; ++i) {
    const int index = (first_lane_ + i) % kRdmaLanes;
    Lane& lane = lanes_[static_cast<std::size_t>(index)];
    if (!lane.held.empty()) GF_RETURN_IF_ERROR(TakeHeld(index, moved));
    if (!closed_ && lane.in_message) GiveGrants(index);
  }
  if (closed_ || *args_.owed_credits < kMostOwedCredits) return Status();
  if (args_.pair->room() == 0) {
    to_push_ = needs_room_ = true;
    return Status();
  }
  Immediate immediate;
  immediate.kind = ImmediateKind::kGrant;
  immediate.credits = std::exchange(*args_.owed_credits, 0);
  QueuePair::WriteArgs write;
  write.immediate = Encode(immediate);
  args_.pair->Write(write);
  ++args_.rail->stats().credits;
  ++args_.rail->stats().control_writes;
  *moved = true;
  return Status();
}

bool Inbox::CanMove() const {
  return to_push_ && !closed_ && !(needs_room_ && args_.pair->room() == 0) &&
         !(needs_slot_ && !args_.rail->landings().HasFor(this));
}

bool Inbox::InMessage() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.in_message; });
}

void Inbox::Close() {
  closed_ = true;
  GiveBackSlots();
}

void Inbox::GiveBackSlots() {
  args_.rail->landings().Leave(this);
  for (Lane& lane : lanes_) {
    for (; lane.count > 0; --lane.count) {
      const Given& given = lane.given[static_cast<std::size_t>(lane.first)];
      if (given.slot.index >= 0) args_.rail->landings().Give(given.slot.index);
      lane.first = (lane.first + 1) % kGrantsPerLane;
    }
  }
}

}  // namespace gradientflow
