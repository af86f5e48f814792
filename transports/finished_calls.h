#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "transports/tags.h"
#include "transports/wire.h"

namespace gradientflow {

// Which collectives this rank has finished: a message of one of them that comes
// later belongs to a call that this rank did not make. NOT thread-safe.
class FinishedCalls {
 public:
  // `call` of that series, and all before it, are finished.
  void Finish(GroupId group, int series, std::uint64_t call) {
    next_[group][static_cast<std::size_t>(series)] = call + 1;
  }
  void Forget(GroupId group) { next_.erase(group); }
  // Returns whether it is a message of a finished call.
  bool Has(MessageId id) const {
    if (IsPointToPoint(id.tag)) return false;
    const auto next = next_.find(id.group);
    return next != next_.end() &&
           IsEarlierCall(CallOf(id.tag), next->second[SeriesOf(id.tag)]);
  }

 private:
  // The number of the next call of each series.
  std::unordered_map<GroupId, std::array<std::uint64_t, 2>> next_;
};

}  // namespace gradientflow
