#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/done.h"
#include "gradientflow/collectives/placed_slots.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/segment_data.h"
#include "transports/remote_places.h"

namespace gradientflow {

// The messages of a segment whose ranks write them directly to their
// destination in each other's memory. NOT thread-safe.
class PlacedSide {
 public:
  PlacedSide(const SegmentArgs& args, SegmentData& data)
      : args_(args), data_(data) {}

  // The segment has `slot` for itself until Reset(). `told` runs when a part
  // has come, with the number of its action added to the cookie. REQUIRES that
  // the data has been started.
  void Start(PlacedSlot* slot, Done told);
  void Reset();
  bool active() const { return slot_ != nullptr; }

  // Posts the messages of a round.
  void Post(const std::vector<Action>& round);
  // The messages of the round that have not come.
  int pending() const { return pending_; }
  // What action number `action` of the round awaits has come.
  void OnMessage(const std::vector<Action>& round, std::uint32_t action,
                 std::uint32_t flags);
  // Whether the network still reads from the call's buffer.
  bool lends() const { return slot_ != nullptr && slot_->lends_payloads(); }
  // The fabric has failed, so that nothing is lent any more.
  void Abandon() {
    if (slot_ != nullptr) slot_->AbandonPayloads();
  }
  // Fails the segment if a peer has written what nothing has awaited.
  void CheckAllAwaited() { data_.Fail(slot_->CheckAllAwaited()); }
  // Appends the ranks that have yet to place something in this round.
  void AddAwaited(const std::vector<Action>& round,
                  std::vector<int>* ranks) const;

 private:
  // The fabric's number of the peer, which is the job's.
  int PeerOf(const Action& action) const {
    return data_.operation()->group->FabricRank(action.peer);
  }
  void PutContribution(const Action& action);
  void PutSum(const Action& action);
  void Await(const Action& action, std::uint32_t index);
  void Take(const Action& action, std::uint32_t flags);
  std::size_t Offset(const Slice& slice) const;
  // Where the finished block is to land on this rank.
  RemotePlace ResultPlace(const Slice& block) const {
    return reached_ == nullptr
               ? ResultPart(block)
               : reached_name_.At(block.offset * data_.wire_bytes());
  }
  // Returns the elements where they are, if the network reaches them there in
  // their wire form; otherwise null.
  std::byte* Reachable(const Slice& slice) const {
    return reached_ == nullptr ? ReachablePart(slice)
                               : reached_ + slice.offset * data_.wire_bytes();
  }
  // The same for a segment that is not reached as a whole: it has gaps, or
  // memory of several registrations.
  RemotePlace ResultPart(const Slice& block) const;
  std::byte* ReachablePart(const Slice& slice) const;

  const SegmentArgs& args_;
  SegmentData& data_;
  PlacedSlot* slot_ = nullptr;
  int pending_ = 0;
  std::uint64_t signature_ = 0;
  // The segment's elements, if the network reaches all of them where they are;
  // else null. And their name for peers.
  std::byte* reached_ = nullptr;
  RemotePlace reached_name_;
};

}  // namespace gradientflow
