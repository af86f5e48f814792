#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "transports/tags.h"
#include "transports/wire.h"

namespace gradientflow {

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
    return {WithNumber(id.tag, number), id.group};
  }
  static MessageId Key(MessageId id) { return With(id, 0); }
  Numbers Of(MessageId id) const {
    const auto found = numbers_.find(Key(id));
    return found == numbers_.end() ? Numbers() : found->second;
  }

  std::unordered_map<MessageId, Numbers, HashOfId> numbers_;
};

}  // namespace gradientflow
