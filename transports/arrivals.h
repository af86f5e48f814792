#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "transports/wire.h"

namespace gradientflow {

// The tag of a point-to-point message: that which its sender named, and the
// message's number among those of that tag.
inline constexpr Tag kPointToPointBit = Tag{1} << 63;
inline constexpr Tag kNumberMask = 0x7FFFFFFF;
constexpr Tag PointToPointTag(std::uint32_t named, std::uint32_t number) {
  return kPointToPointBit | Tag{named} << 31 | (number & kNumberMask);
}
// Below, senders number: messages of one tag may go by several lanes, and
// overtake each other. From there on they all say 0 and go by one lane, and the
// receiver numbers them as they come: it forgets a tag none of whose messages
// is awaited or waits, so that any number of tags may be used.
inline constexpr std::uint32_t kNumberedTags = 256;
constexpr std::uint32_t NamedTag(Tag tag) {
  return static_cast<std::uint32_t>(tag >> 31);
}
constexpr bool IsNumberedByReceiver(Tag tag) {
  return (tag & kPointToPointBit) != 0 && NamedTag(tag) >= kNumberedTags;
}

struct HashOfId {
  std::size_t operator()(const MessageId& id) const {
    // Tags count in several fields: all bits must reach the low ones.
    const std::uint64_t hash =
        (id.tag ^ std::uint64_t{id.group} << 40) * 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>(hash ^ hash >> 32);
  }
};

// Numbers the messages of one peer that IsNumberedByReceiver(), and receives of
// them. Ids are given with any number.
class Arrivals {
 public:
  // Of the receive that begins.
  MessageId Receive(MessageId id) {
    return With(id, numbers_[Key(id)].received++);
  }
  // Of the receive that begins next.
  MessageId NextReceive(MessageId id) const {
    return With(id, Of(id).received);
  }
  // Of the message that comes next, or is coming.
  MessageId NextArrival(MessageId id) const { return With(id, Of(id).arrived); }
  void Arrived(MessageId id) { ++numbers_[Key(id)].arrived; }
  // As many receives have begun as messages have arrived.
  bool Even(MessageId id) const { return Of(id).received == Of(id).arrived; }
  // The next of either kind is number 0. REQUIRES that none is known.
  void Forget(MessageId id) { numbers_.erase(Key(id)); }

  std::size_t tags() const { return numbers_.size(); }

 private:
  struct Numbers {
    std::uint32_t received = 0;
    std::uint32_t arrived = 0;
  };
  static MessageId With(MessageId id, std::uint32_t number) {
    return {(id.tag & ~kNumberMask) | (number & kNumberMask), id.group};
  }
  static MessageId Key(MessageId id) { return With(id, 0); }
  Numbers Of(MessageId id) const {
    const auto found = numbers_.find(Key(id));
    return found == numbers_.end() ? Numbers() : found->second;
  }

  std::unordered_map<MessageId, Numbers, HashOfId> numbers_;
};

}  // namespace gradientflow
