#pragma once

#include <cstddef>

#include "gradientflow/collectives/collective.h"

namespace gradientflow {

// What stands in front of a contribution: see PlacedHeader.
inline constexpr std::size_t kPlacedHeaderBytes = 64;

// The slots that segments use in turn are a window. A rank has one for each
// channel of the calls of all ranks, numbered as that, and one that it lends to
// a group for its gradients.
inline constexpr int kGroupWindow = kChannels;
inline constexpr int kPlacedWindows = kChannels + 1;
inline constexpr int kNoWindow = -1;

// What is where in slot memory (RemotePlaces::slots()), in bytes: the slots of
// each window, one behind another. A slot is what one segment of a placed call
// needs on one rank among p that place messages on each other:
//
//   landings  p - 1 of: a header, and a peer's contribution to this rank's
//             block. The peers write here.
//   headers   of the contributions that this rank sends, one for each rank.
//   sum       this rank's block when it is finished. It is sent from here, so
//             that the call's buffer is not needed for that.
//   image     what this rank contributes, if that cannot leave from the call's
//             buffer.
//   results   where the finished blocks of the peers land, if they cannot land
//             in the call's buffer.
//
// All ranks of a job have the same layout, so each knows where to write.
struct PlacedLayout {
  int slots = 0;                  // Of a window of all ranks,
  int group_slots = 0;            // and of that of a group; may be none.
  std::size_t landing_bytes = 0;  // From one landing to the next.
  std::size_t headers = 0;        // Offsets within a slot.
  std::size_t sum = 0;
  std::size_t image = 0;
  std::size_t results = 0;
  std::size_t slot_bytes = 0;
  std::size_t part_bytes = 0;  // The most that the p blocks have together.

  std::size_t LandingOf(int index) const {
    return static_cast<std::size_t>(index) * landing_bytes;
  }
  std::size_t SlotOf(int window, int slot) const {
    return (static_cast<std::size_t>(window) * static_cast<std::size_t>(slots) +
            static_cast<std::size_t>(slot)) *
           slot_bytes;
  }
  int SlotsIn(int window) const {
    return window == kGroupWindow ? group_slots : slots;
  }
};

// Returns the layout for segments of all ranks, by the settings `segment_bytes`
// and `segments_in_flight`. There are as many slots as segments in flight,
// unless a rank would have more than 64 MB registered, with what links need. A
// group gets the same number from what is left, but at least two.
PlacedLayout PlacedLayoutFor(int ranks, std::size_t segment_bytes,
                             int segments_in_flight);

// Returns the layout for blocks of columns, which have a rank on each of
// `hosts` hosts. When memory is registered a rank does not know its peers'
// hosts, so it is that of PlacedLayoutFor(), with as many slots of the same
// size, and part_bytes says what fits into one: some third of it.
PlacedLayout PlacedLayoutBetween(int hosts, int ranks,
                                 std::size_t segment_bytes,
                                 int segments_in_flight);

// Returns the layout for segments of a group of `members` of the ranks. It is
// in the group's window, in slots of the same size.
PlacedLayout PlacedLayoutOfGroup(int members, int ranks,
                                 std::size_t segment_bytes,
                                 int segments_in_flight);

// Returns the bytes of slot memory that each rank needs for that.
std::size_t PlacedSlotBytes(int ranks, std::size_t segment_bytes,
                            int segments_in_flight);

// Returns how many notices of one peer may wait for a rank at most: in each
// slot there are a sum, and the contribution to the next segment.
int PlacedNotices(int ranks, std::size_t segment_bytes, int segments_in_flight);

}  // namespace gradientflow
