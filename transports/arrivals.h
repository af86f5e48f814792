#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "transports/tags.h"
#include "transports/wire.h"

namespace gradientflow {

struct HashOfId {
  std::size_t operator()(const MessageId& id) const {
    // A tag has counters in several fields, so all of its bits must reach the
    // low bits of the hash.
    const std::uint64_t hash =
        (id.tag ^ std::uint64_t{id.group} << 40) * 0x9E3779B97F4A7C15;
    return static_cast<std::size_t>(hash ^ hash >> 32);
  }
};

// Numbers the messages that IsNumberedByReceiver() from one peer, and the
// receives for them, in the order in which they arrive and begin. The ids that
// are passed in may contain any number; it is replaced.
class Arrivals {
 public:
  // Returns the id of a receive that begins now, and counts it.
  MessageId Receive(MessageId id) {
    return With(id, numbers_[Key(id)].received++);
  }
  // Returns the id of the receive that will begin next.
  MessageId NextReceive(MessageId id) const {
    return With(id, Of(id).received);
  }
  // Returns the id of the message that arrives next or is arriving.
  MessageId NextArrival(MessageId id) const { return With(id, Of(id).arrived); }
  void Arrived(MessageId id) { ++numbers_[Key(id)].arrived; }
  // An announcement counts as the arrival of its message, which keeps its
  // number until it is Over().
  void Announced(MessageId id) {
    Arrived(id);
    ++numbers_[Key(id)].announced;
  }
  void Over(MessageId id) { --numbers_[Key(id)].announced; }
  // True if as many receives have begun as messages have arrived, and no
  // announced message is still to come.
  bool Even(MessageId id) const {
    const Numbers of = Of(id);
    return of.received == of.arrived && of.announced == 0;
  }
  // Starts both numbers at 0 again. REQUIRES that no message and no receive
  // under this id is pending.
  void Forget(MessageId id) { numbers_.erase(Key(id)); }

 private:
  struct Numbers {
    std::uint32_t received = 0;
    std::uint32_t arrived = 0;
    std::uint32_t announced = 0;
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
