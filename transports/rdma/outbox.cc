#include "transports/rdma/outbox.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <utility>

#include "gradientflow/base/ok_status.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// What one Push() copies, so that no link starves the others.
constexpr std::size_t kCopiedAtOnce = std::size_t{1} << 20;
// Networks may take packets of one message by several ways, but not those of a
// write with an immediate number. So beyond a few packets these are two
// requests: the data, then the number.
constexpr std::size_t kWithImmediate = std::size_t{8} << 10;
// A work request for the data, and one for the number or for the next frame.
constexpr int kRequestsPerPiece = 2;

// What a cookie stands for, in its low bits; the rest is an index.
enum : std::uint64_t {
  kSlotCookie = 1,
  kDoneCookie = 2,
  kPutCookie = 3,  // Without an index.
  kCookieBits = 2,
  kCookieMask = (1 << kCookieBits) - 1,
};

bool IsLong(const OutMessage& message) {
  return message.header.payload_bytes > kRingPayloadBytes;
}

}  // namespace

void Outbox::Send(int lane, const OutMessage& message) {
  lanes_[static_cast<std::size_t>(lane)].queue.push_back(message);
  Began(message.header.payload_bytes);
  ++queued_;
  MayPush();
}

void Outbox::Put(std::span<const ConstBufferView> pieces,
                 const RemotePlace& there, std::uint32_t notice,
                 const Done& done) {
  if (puts_.empty() && args_.pair->room() >= kRequestsPerPiece) {
    return WritePut(pieces, there, notice, done);
  }
  Placed put{{}, pieces.size(), there, notice, done};
  std::copy(pieces.begin(), pieces.end(), put.pieces.begin());
  puts_.push_back(put);
  ++queued_;
  to_push_ = needs_room_ = true;
}

bool Outbox::CanMove() const {
  if (!done_.empty()) return true;
  return to_push_ && !(needs_room_ && args_.pair->room() < kRequestsPerPiece) &&
         !(needs_slot_ && !args_.rail->staging().HasFor(this));
}

bool Outbox::Push() {
  if (!to_push_) return false;
  to_push_ = needs_room_ = needs_slot_ = false;
  std::size_t budget = kCopiedAtOnce;
  bool moved = PushPuts();
  moved |= PushLane(0, &budget);
  // The others come first in turn, so that none keeps the ring to itself.
  constexpr int kDataLanes = kRdmaLanes - 1;
  first_lane_ = (first_lane_ + 1) % kDataLanes;
  for (int i = 0; i < kDataLanes; ++i) {
    moved |= PushLane(1 + (first_lane_ + i) % kDataLanes, &budget);
  }
  to_push_ |= needs_room_ || needs_slot_ || budget == 0;
  return moved;
}

bool Outbox::PushPuts() {
  bool moved = false;
  while (!puts_.empty()) {
    if (args_.pair->room() < kRequestsPerPiece) {
      needs_room_ = true;
      break;
    }
    const Placed put = puts_.pop_front();
    WritePut({put.pieces.data(), put.count}, put.there, put.notice, put.done);
    --queued_;
    moved = true;
  }
  return moved;
}

void Outbox::WritePut(std::span<const ConstBufferView> pieces,
                      const RemotePlace& there, std::uint32_t notice,
                      const Done& done) {
  QueuePair::WriteArgs data;
  std::size_t bytes = 0;
  for (const ConstBufferView& from : pieces) {
    if (from.bytes == 0) continue;
    const Registration* const reached =
        args_.rail->reach().Find(from.data, from.bytes);
    assert(reached != nullptr);
    data.Add(from.data, from.bytes, reached->local_key());
    bytes += from.bytes;
  }
  data.there = there;
  if (done.run != nullptr) {
    lent_puts_.push_back({done, bytes});
    Began(bytes);
    data.cookie = kPutCookie;
  }
  ++args_.rail->stats().puts;
  WriteTold(&data, bytes, EncodePlaced(notice));
}

bool Outbox::PushLane(int index, std::size_t* budget) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  bool moved = false;
  while (!lane.queue.empty() && (*budget > 0 || lane.framed)) {
    const OutMessage& first = lane.queue.front();
    if (!lane.asked) {
      if (!lane.framed) {
        if (!RingHasRoom()) return moved;
        if (args_.pair->room() == 0) {
          needs_room_ = true;
          return moved;
        }
        WriteFrame(index, first, /*filled=*/false);
      }
      lane.framed = false;
      moved = true;
      if (!IsLong(first)) {
        *budget -= std::min<std::size_t>(*budget, kRingSlotBytes);
        Ended(first.header.payload_bytes);
        done_.Add(first.done, 0, Status());
        lane.queue.pop_front();
        --queued_;
        continue;
      }
      lane.asked = true;
    }
    const std::uint64_t before = lane.sent;
    const bool whole = PushPieces(index, budget);
    moved |= whole || lane.sent != before;
    if (!whole) return moved;
    lane.queue.pop_front();
    --queued_;
    lane.asked = false;
    lane.sent = lane.granted = 0;
  }
  return moved;
}

int Outbox::TakeCredits() { return std::exchange(*args_.owed_credits, 0); }

bool Outbox::RingHasRoom() const { return frames_ - freed_ < kRingSlots; }

void Outbox::WriteFrame(int lane, const OutMessage& message, bool filled) {
  const std::size_t offset =
      static_cast<std::size_t>(frames_++ % kRingSlots) * kRingSlotBytes;
  std::byte* const slot = args_.ring + offset;
  const auto header = EncodeHeader(message.header);
  std::copy(header.begin(), header.end(), slot);
  std::size_t bytes = header.size();
  RdmaStats& stats = args_.rail->stats();
  if (IsLong(message)) {
    ++stats.requests;
    ++stats.control_writes;
  } else {
    if (message.payload.bytes > 0) {
      std::memcpy(slot + bytes, message.payload.data, message.payload.bytes);
      bytes += message.payload.bytes;
    }
    ++stats.frames;
    ++stats.data_writes;
    stats.bytes += message.payload.bytes;
  }
  QueuePair::WriteArgs write;
  write.Add(slot, bytes, args_.ring_key);
  write.there = peer_ring_.At(offset);
  Immediate immediate;
  immediate.lane = lane;
  immediate.credits = TakeCredits();
  immediate.filled = filled;
  write.immediate = Encode(immediate);
  args_.pair->Write(write);
}

bool Outbox::PushPieces(int index, std::size_t* budget) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  const OutMessage& message = lane.queue.front();
  while (lane.sent < message.header.payload_bytes) {
    if (lane.grants.empty() || *budget == 0) return false;
    if (args_.pair->room() < kRequestsPerPiece) {
      needs_room_ = true;
      args_.rail->staging().Leave(this);
      return false;
    }
    Granted& to = lane.grants.front();
    std::size_t copied = 0;
    if (!WritePiece(index, &to, &copied)) return false;
    *budget -= std::min(*budget, copied);
    if (to.written == to.grant.bytes) lane.grants.pop_front();
  }
  return true;
}

// Writes as much of a grant as goes at once, and with the last piece of a
// message perhaps the frame of the next. Returns false if there is no slot.
bool Outbox::WritePiece(int index, Granted* to, std::size_t* copied) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  const OutMessage& message = lane.queue.front();
  const std::byte* from = message.payload.data + lane.sent;
  std::size_t bytes = std::min<std::size_t>(
      to->grant.bytes - to->written, args_.rail->port().max_message_bytes);
  const Registration* const reached =
      args_.rail->reach().Find(message.payload.data, message.payload.bytes);
  std::uint32_t key = 0;
  std::uint64_t cookie = 0;
  if (reached != nullptr) {
    key = reached->local_key();
  } else {
    CardSlots& staging = args_.rail->staging();
    const std::optional<CardSlots::Slot> slot = staging.Take(this);
    if (!slot) {
      needs_slot_ = true;
      return false;
    }
    bytes = std::min(bytes, staging.slot_bytes());
    std::memcpy(slot->data, from, bytes);
    from = slot->data;
    key = slot->local_key;
    slots_.push_back(slot->index);
    cookie =
        static_cast<std::uint64_t>(slot->index) << kCookieBits | kSlotCookie;
  }
  const bool last = lane.sent + bytes == message.header.payload_bytes;
  if (last && reached == nullptr) {
    Ended(message.header.payload_bytes);
    done_.Add(message.done, 0, Status());
  }
  if (last && reached != nullptr) {
    cookie = Remember({message.done, message.header.payload_bytes});
  }
  QueuePair::WriteArgs data;
  data.Add(from, bytes, key);
  data.there = to->grant.there.At(to->written);
  data.cookie = cookie;
  const bool fills = to->written + bytes == to->grant.bytes;
  if (!fills) {
    WriteData(data, bytes);
  } else if (last && bytes > kWithImmediate && lane.queue.size() > 1 &&
             RingHasRoom()) {
    // The next frame tells the peer, so that a stream needs one request fewer
    // per message.
    WriteData(data, bytes);
    WriteFrame(index, lane.queue[1], /*filled=*/true);
    lane.framed = true;
  } else {
    Immediate immediate;
    immediate.kind = ImmediateKind::kPiece;
    immediate.lane = index;
    immediate.credits = TakeCredits();
    WriteTold(&data, bytes, Encode(immediate));
  }
  to->written += static_cast<std::uint32_t>(bytes);
  lane.sent += bytes;
  *copied = reached != nullptr ? 0 : bytes;
  return true;
}

void Outbox::WriteData(const QueuePair::WriteArgs& data, std::size_t bytes) {
  RdmaStats& stats = args_.rail->stats();
  ++stats.data_writes;
  stats.bytes += bytes;
  args_.pair->Write(data);
}

// The peer is told the number when it has the data.
void Outbox::WriteTold(QueuePair::WriteArgs* data, std::size_t bytes,
                       std::uint32_t immediate) {
  if (bytes <= kWithImmediate) {
    data->immediate = immediate;
    return WriteData(*data, bytes);
  }
  WriteData(*data, bytes);
  QueuePair::WriteArgs number;
  number.immediate = immediate;
  args_.pair->Write(number);
}

std::uint64_t Outbox::Remember(const Lent& lent) {
  if (free_lent_.empty()) {
    free_lent_.push_back(static_cast<std::uint32_t>(lent_.size()));
    lent_.emplace_back();
  }
  const std::uint32_t index = free_lent_.back();
  free_lent_.pop_back();
  lent_[index] = lent;
  return std::uint64_t{index} << kCookieBits | kDoneCookie;
}

// A message's completion waits for RunDones(), but that of a put runs here, as
// the sink of notices does: both tell the same segments, and writing more from
// there is safe.
void Outbox::OnWritten(std::uint64_t cookie) {
  if (cookie == kPutCookie) {
    const Lent put = lent_puts_.pop_front();
    Ended(put.bytes);
    return put.done(kOkStatus);
  }
  const std::uint64_t index = cookie >> kCookieBits;
  if ((cookie & kCookieMask) == kSlotCookie) {
    std::erase(slots_, static_cast<int>(index));
    args_.rail->staging().Give(static_cast<int>(index));
    return;
  }
  const Lent lent = std::exchange(lent_[index], Lent());
  Ended(lent.bytes);
  done_.Add(lent.done, 0, Status());
  free_lent_.push_back(static_cast<std::uint32_t>(index));
}

Status Outbox::OnCredits(int credits) {
  freed_ += static_cast<std::uint64_t>(credits);
  if (freed_ > frames_) {
    return Status(
        StatusCode::kDataLoss,
        StrCat("gives back ", credits,
               " slots of its ring, expected "
               "at most ",
               frames_ + static_cast<std::uint64_t>(credits) - freed_));
  }
  if (credits > 0 && queued_ > 0) MayPush();
  return Status();
}

Status Outbox::OnGrant(int index) {
  Lane& lane = lanes_[static_cast<std::size_t>(index)];
  const int place = index * kGrantsPerLane + lane.next_grant;
  lane.next_grant = (lane.next_grant + 1) % kGrantsPerLane;
  const Grant grant =
      DecodeGrant(args_.grants + static_cast<std::size_t>(place) * kGrantBytes);
  const std::uint64_t left =
      lane.asked ? lane.queue.front().header.payload_bytes - lane.granted : 0;
  if (grant.bytes == 0 || grant.bytes > left ||
      lane.grants.size() >= kGrantsPerLane) {
    return Status(StatusCode::kDataLoss,
                  StrCat("grants ", grant.bytes, " bytes in lane ", index,
                         ", expected 1 to ", left));
  }
  lane.granted += grant.bytes;
  lane.grants.push_back({grant});
  MayPush();
  return Status();
}

void Outbox::EndAll(const Status& why) {
  for (Lane& lane : lanes_) {
    while (!lane.queue.empty()) done_.Add(lane.queue.pop_front().done, 0, why);
    lane = Lane();
  }
  puts_.clear();
  lent_puts_.clear();
  for (const Lent& lent : lent_) {
    if (lent.done.run != nullptr) done_.Add(lent.done, 0, why);
  }
  lent_.clear();
  free_lent_.clear();
  for (const int slot : slots_) args_.rail->staging().Give(slot);
  args_.rail->staging().Leave(this);
  slots_.clear();
  queued_ = 0;
  to_push_ = false;
}

void Outbox::ForgetPuts() {
  for (std::size_t i = 0; i < puts_.size(); ++i) puts_[i].done = Done();
  for (std::size_t i = 0; i < lent_puts_.size(); ++i)
    lent_puts_[i].done = Done();
}

void Outbox::DropAll() {
  EndAll(Status());
  done_.Clear();
}

}  // namespace gradientflow
