#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/operation.h"
#include "gradientflow/collectives/placed_side.h"
#include "gradientflow/collectives/placed_slots.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/segment_data.h"
#include "gradientflow/collectives/shared_side.h"
#include "gradientflow/collectives/slabs.h"

namespace gradientflow {

// Runs one rank's schedule for one segment of an operation. For each round it
// posts the messages, converts to the wire dtype as it sends, converts back or
// accumulates as it receives, and runs the local actions. The object is used
// again for segment after segment. NOT thread-safe.
class Segment {
 public:
  Segment(const SegmentArgs& args, std::uint32_t slot)
      : args_(args), slot_(slot), data_(args) {}
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Starts on elements [begin, begin + count) of each block. `first_sync` is
  // the number of the schedule's first kSync; the following ones count on from
  // it. If the schedule's messages are placed, the segment has the slot for
  // itself until Reset().
  struct Means {
    std::uint64_t first_sync = 0;
    PlacedSlot* placed = nullptr;
  };
  void Start(Operation* operation, std::uint64_t index, Extent part,
             std::shared_ptr<const Schedule> schedule, const Means& means);

  // A message has ended well. `action` is the low half of the cookie that the
  // fabric got.
  void OnMessage(std::uint32_t action, std::uint32_t flags);

  // Goes as far as possible without waiting. Returns whether anything moved. If
  // the segment itself failed, status() says why. At a kSync it looks for its
  // peers up to `looks` times before it returns.
  bool Advance(int looks = 1);

  bool idle() const { return data_.operation() == nullptr; }
  bool done() const { return !idle() && done_; }
  // True while messages are pending: until they end, Advance() has nothing to
  // do.
  bool awaits_messages() const {
    return traffic_[round_ % 2].pending + placed_.pending() > 0;
  }
  const Status& status() const { return data_.status(); }
  Operation* operation() const { return data_.operation(); }
  // Whether it shows its peers a copy in a mailbox.
  bool mailed() const { return !idle() && data_.schedule().mailed; }
  std::uint64_t next_sync() const { return shared_.next_sync(); }
  std::size_t begin() const { return data_.begin(); }
  std::size_t count() const { return data_.count(); }
  std::uint32_t flags() const { return data_.flags(); }
  // Appends the ranks that have not come to the current kSync, or have not
  // placed what this round awaits. REQUIRES that it is not idle.
  void AddAwaited(std::vector<int>* ranks) const;
  // The fabric has failed, so that placed messages are not lent any more.
  void PutsAreOver() { placed_.Abandon(); }
  // See SharedSide. REQUIRES that it is not idle.
  void Retract() { shared_.Retract(); }
  // Gives back what the segment used and makes it ready for the next Start().
  void Reset();
  // Frees what an idle segment keeps of the arena for its next call, if no call
  // has used that since the last time.
  void Trim() {
    if (idle()) shared_.Trim();
  }

 private:
  struct Encoded {  // A slice that this round has converted already.
    Slice slice;
    const std::byte* wire = nullptr;
  };
  struct Decode {  // A message to convert when it has arrived.
    std::uint32_t action = 0;
    std::byte* wire = nullptr;
  };
  // What a round has under way. Receives of the next round may be posted while
  // this round runs, so there are two of these, by the parity of the round.
  struct Traffic {
    bool receives_posted = false;
    int pending = 0;
    std::vector<Decode> decodes;
    std::vector<Slabs::Slab> slots;
  };

  const std::vector<Action>& actions() const {
    return data_.schedule().rounds[round_];
  }
  std::byte* NewSlot(std::size_t bytes, std::size_t round);
  std::uint64_t Cookie(std::uint32_t action, std::size_t round) const;
  MessageId NextId(std::vector<std::uint16_t>* ordinals, int peer);

  void PostRound();
  void PostReceives(std::size_t round);
  void PostEarlyReceives();
  void PostRecv(const Action& action, std::uint32_t index, std::size_t round);
  const std::byte* WireImage(const Action& action);
  bool RunLocal(const Action& action, int looks);
  void NextRound();
  bool Finish();

  const SegmentArgs& args_;
  const std::uint32_t slot_;
  SegmentData data_;
  SharedSide shared_{args_, data_};
  PlacedSide placed_{args_, data_};
  bool done_ = false;
  std::size_t round_ = 0;
  bool posted_ = false;
  std::array<Traffic, 2> traffic_;
  std::size_t local_ = 0;            // The next local action of the round.
  std::vector<std::uint16_t> sent_;  // Number of messages so far, by peer.
  std::vector<std::uint16_t> received_;
  std::vector<Encoded> encoded_;
};

}  // namespace gradientflow
