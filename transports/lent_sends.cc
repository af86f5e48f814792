#include "transports/lent_sends.h"

#include <algorithm>
#include <utility>

namespace gradientflow {

std::uint64_t LentSends::Add(int peer, MessageId id, ConstBufferView src,
                             Stamp stamp, Done done) {
  if (free_.empty()) {
    free_.push_back(sends_.size());
    sends_.emplace_back();
  }
  const std::uint64_t slot = free_.back();
  free_.pop_back();
  sends_[slot] = {done, peer, id, src, stamp, false, {}};
  return slot;
}

OutMessage LentSends::MessageOf(std::uint64_t slot, MessageKind kind,
                                MessageId id) {
  const Lent& lent = sends_[slot];
  OutMessage message;
  message.header.kind = kind;
  message.header.flags = lent.stamp.flags;
  message.header.signature = lent.stamp.signature;
  message.header.tag = id.tag;
  message.header.group = id.group;
  message.header.payload_bytes = lent.src.bytes;
  message.payload = lent.src;
  message.done = {&LentSends::OnSent, this, slot};
  return message;
}

OutMessage LentSends::Announce(std::uint64_t slot) {
  Lent& lent = sends_[slot];
  lent.announced = true;
  lent.announcement = EncodeAnnouncement({lent.src.bytes, slot});
  OutMessage message = MessageOf(slot, MessageKind::kAnnounce, lent.id);
  message.header.payload_bytes = kAnnouncementBytes;
  message.payload = {lent.announcement.data(), kAnnouncementBytes, {}};
  message.done = {};
  return message;
}

bool LentSends::Answered(int peer, std::uint64_t slot) {
  if (slot >= sends_.size() || sends_[slot].peer != peer) return false;
  return std::exchange(sends_[slot].announced, false);
}

void LentSends::OnSent(void* self, std::uint64_t slot, std::uint32_t flags,
                       const Status& status) {
  auto& sends = *static_cast<LentSends*>(self);
  // A send fails because its peer went down. Its Done runs with the verdict on
  // that, in FailAll().
  if (!status.ok()) return;
  const Lent lent = std::exchange(sends.sends_[slot], Lent{});
  sends.free_.push_back(slot);
  lent.done(status, flags);
}

bool LentSends::HasAny(int peer) const {
  return std::any_of(sends_.begin(), sends_.end(), [peer](const Lent& lent) {
    return lent.done.run != nullptr && lent.peer == peer;
  });
}

bool LentSends::AwaitsAnswer(int peer) const {
  return std::any_of(sends_.begin(), sends_.end(), [peer](const Lent& lent) {
    return lent.announced && lent.peer == peer;
  });
}

void LentSends::FailAll(const Status& why, DoneQueue* due) {
  for (Lent& send : sends_) {
    if (send.done.run != nullptr) due->Add(send.done, 0, why);
    send = Lent{};
  }
}

}  // namespace gradientflow
