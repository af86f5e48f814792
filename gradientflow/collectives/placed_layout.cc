#include "gradientflow/collectives/placed_layout.h"

#include <algorithm>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/placed_notice.h"

namespace gradientflow {
namespace {

// What a card has registered for a rank besides memory of the application:
// slots for messages, something for each link, and what is placed.
constexpr std::size_t kMostBytes = 64'000'000;
constexpr std::size_t kMessageSlotBytes = std::size_t{8} << 20;
constexpr std::size_t kLinkBytes = std::size_t{136} << 10;
constexpr std::size_t kWidestElement = 8;
// With a single slot segments do not overlap.
constexpr int kLeastGroupSlots = 2;

// Returns the bytes that are left for what is placed. Among very many ranks not
// all are linked.
std::size_t RoomFor(int ranks) {
  const auto links = static_cast<std::size_t>(std::clamp(ranks - 1, 0, 63));
  return kMostBytes - kMessageSlotBytes - links * kLinkBytes;
}

// Room for vector instructions that read past the end of an array is included.
constexpr std::size_t Rounded(std::size_t bytes) {
  return (bytes + 127) / 64 * 64;
}

// One slot, for `ranks` blocks of `bytes` in all. A part has at least one
// element, and so has the longest block.
PlacedLayout LayOut(int ranks, std::size_t bytes) {
  const std::size_t part = Rounded(std::max(bytes, kWidestElement));
  const auto p = static_cast<std::size_t>(ranks);
  const std::size_t block = Rounded(bytes / p + kWidestElement);
  PlacedLayout layout;
  layout.landing_bytes = kPlacedHeaderBytes + block;
  layout.headers = (p - 1) * layout.landing_bytes;
  layout.sum = layout.headers + p * kPlacedHeaderBytes;
  layout.image = layout.sum + block;
  layout.results = layout.image + part;
  layout.slot_bytes = layout.results + part;
  layout.part_bytes = bytes;
  return layout;
}

// The layout of what some ranks place in the slots that all have.
PlacedLayout InSlotsOf(const PlacedLayout& all, PlacedLayout layout) {
  layout.slots = all.slots;
  layout.group_slots = all.group_slots;
  layout.slot_bytes = all.slot_bytes;
  return layout;
}

// The bytes of a whole segment.
std::size_t SegmentOf(int ranks, std::size_t segment_bytes) {
  CallQuestion question;
  question.hosts = HostMap(ranks);
  question.wire_element_bytes = 1;
  question.segment_bytes = segment_bytes;
  return CutOf(CollectiveKind::kAllreduce, allreduce::kGdraa, question)
      .elements;
}

}  // namespace

PlacedLayout PlacedLayoutFor(int ranks, std::size_t segment_bytes,
                             int segments_in_flight) {
  PlacedLayout layout = LayOut(ranks, SegmentOf(ranks, segment_bytes));
  // For blocks of fewer ranks: each may be rounded up by so much more.
  layout.slot_bytes += static_cast<std::size_t>(ranks) * 64;
  const auto room = static_cast<int>(std::min<std::size_t>(
      RoomFor(ranks) / layout.slot_bytes, kPlacedWindows * kMostPlacedSlots));
  const int wanted = std::min(segments_in_flight, kMostPlacedSlots);
  layout.slots = std::clamp((room - kLeastGroupSlots) / kChannels, 1, wanted);
  const int left = std::min(room - kChannels * layout.slots, layout.slots);
  layout.group_slots =
      left < std::min(kLeastGroupSlots, layout.slots) ? 0 : left;
  return layout;
}

PlacedLayout PlacedLayoutBetween(int hosts, int ranks,
                                 std::size_t segment_bytes,
                                 int segments_in_flight) {
  const PlacedLayout all =
      PlacedLayoutFor(ranks, segment_bytes, segments_in_flight);
  std::size_t bytes = all.slot_bytes / 3 / kWidestElement * kWidestElement;
  PlacedLayout layout = LayOut(hosts, bytes);
  while (layout.slot_bytes > all.slot_bytes && bytes > 0) {
    bytes -= kWidestElement;
    layout = LayOut(hosts, bytes);
  }
  return InSlotsOf(all, layout);
}

PlacedLayout PlacedLayoutOfGroup(int members, int ranks,
                                 std::size_t segment_bytes,
                                 int segments_in_flight) {
  const PlacedLayout all =
      PlacedLayoutFor(ranks, segment_bytes, segments_in_flight);
  return InSlotsOf(all, LayOut(members, SegmentOf(members, segment_bytes)));
}

std::size_t PlacedSlotBytes(int ranks, std::size_t segment_bytes,
                            int segments_in_flight) {
  const PlacedLayout layout =
      PlacedLayoutFor(ranks, segment_bytes, segments_in_flight);
  return layout.SlotOf(kGroupWindow, layout.group_slots);
}

int PlacedNotices(int ranks, std::size_t segment_bytes,
                  int segments_in_flight) {
  const PlacedLayout layout =
      PlacedLayoutFor(ranks, segment_bytes, segments_in_flight);
  return kPlacedPhases * (kChannels * layout.slots + layout.group_slots);
}

}  // namespace gradientflow
