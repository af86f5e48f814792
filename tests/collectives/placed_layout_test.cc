#include "gradientflow/collectives/placed_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/schedule.h"

// Whatever is in a slot has room there, within a limit for all slots.
namespace gradientflow {
namespace {

TEST(PlacedLayout, HasRoomForEveryMessageOfASegment) {
  for (const int ranks : {2, 3, 5, 7, 8, 16, 63, 512}) {
    for (const std::size_t segment_bytes :
         {std::size_t{1}, std::size_t{64}, std::size_t{4096},
          std::size_t{256} << 10, std::size_t{64} << 20}) {
      const PlacedLayout layout = PlacedLayoutFor(ranks, segment_bytes, 8);
      for (const std::size_t wire : {1, 2, 4, 8}) {
        CallQuestion question;
        question.hosts = HostMap(ranks);
        question.wire_element_bytes = wire;
        question.segment_bytes = segment_bytes;
        const std::size_t elements =
            CutOf(CollectiveKind::kAllreduce, allreduce::kGdraa, question)
                .elements;
        std::size_t longest = 0;
        for (int b = 0; b < ranks; ++b) {
          longest = std::max(longest, BlockOf(elements, ranks, b).count);
        }
        // Vector instructions read up to 64 bytes more.
        const std::size_t block = longest * wire + 64;
        const std::size_t segment = elements * wire + 64;
        EXPECT_GE(layout.landing_bytes, kPlacedHeaderBytes + block);
        EXPECT_GE(layout.headers, layout.LandingOf(ranks - 1));
        EXPECT_GE(layout.sum, layout.headers + static_cast<std::size_t>(ranks) *
                                                   kPlacedHeaderBytes);
        EXPECT_GE(layout.image, layout.sum + block);
        EXPECT_GE(layout.results, layout.image + segment);
        EXPECT_GE(layout.slot_bytes, layout.results + segment);
      }
      for (const std::size_t area :
           {layout.landing_bytes, layout.sum, layout.image, layout.results,
            layout.slot_bytes}) {
        EXPECT_EQ(area % 64, 0U);
      }
    }
  }
}

TEST(PlacedLayout, HasRoomForTheBlocksOfRails) {
  for (const int hosts : {2, 3, 8, 31, 256}) {
    for (const int on_each : {2, 3, 8}) {
      for (const std::size_t segment_bytes :
           {std::size_t{4096}, std::size_t{256} << 10, std::size_t{64} << 20}) {
        const int ranks = hosts * on_each;
        const PlacedLayout all = PlacedLayoutFor(ranks, segment_bytes, 8);
        const PlacedLayout rails =
            PlacedLayoutBetween(hosts, ranks, segment_bytes, 8);
        EXPECT_EQ(rails.slots, all.slots);
        EXPECT_EQ(rails.slot_bytes, all.slot_bytes);
        EXPECT_GT(rails.part_bytes, all.part_bytes / 2);
        for (const std::size_t wire : {1, 2, 4, 8}) {
          const std::size_t elements = rails.part_bytes / wire;
          const std::size_t block =
              BlockOf(elements, hosts, hosts - 1).count * wire + 64;
          const std::size_t part = elements * wire + 64;
          EXPECT_GE(rails.landing_bytes, kPlacedHeaderBytes + block);
          EXPECT_GE(rails.headers, rails.LandingOf(hosts - 1));
          EXPECT_GE(rails.sum, rails.headers + static_cast<std::size_t>(hosts) *
                                                   kPlacedHeaderBytes);
          EXPECT_GE(rails.image, rails.sum + block);
          EXPECT_GE(rails.results, rails.image + part);
          EXPECT_GE(rails.slot_bytes, rails.results + part);
        }
        EXPECT_EQ(rails.landing_bytes % 64, 0U);
        EXPECT_EQ(rails.sum % 64, 0U);
        EXPECT_EQ(rails.image % 64, 0U);
        EXPECT_EQ(rails.results % 64, 0U);
      }
    }
  }
}

TEST(PlacedLayout, HasRoomForTheBlocksOfGroups) {
  for (const int ranks : {2, 3, 8, 31, 64, 200}) {
    for (int members = 2; members <= ranks; ++members) {
      for (const std::size_t segment_bytes :
           {std::size_t{64}, std::size_t{4096}, std::size_t{256} << 10,
            std::size_t{1} << 20}) {
        const PlacedLayout all = PlacedLayoutFor(ranks, segment_bytes, 8);
        const PlacedLayout group =
            PlacedLayoutOfGroup(members, ranks, segment_bytes, 8);
        const PlacedLayout alone = PlacedLayoutFor(members, segment_bytes, 8);
        EXPECT_EQ(group.slot_bytes, all.slot_bytes);
        EXPECT_EQ(group.SlotOf(kGroupWindow, 1), all.SlotOf(kGroupWindow, 1));
        EXPECT_EQ(group.landing_bytes, alone.landing_bytes);
        EXPECT_EQ(group.sum, alone.sum);
        EXPECT_EQ(group.image, alone.image);
        EXPECT_EQ(group.results, alone.results);
        const std::size_t part = group.results - group.image;
        EXPECT_GE(all.slot_bytes, group.results + part)
            << members << " of " << ranks;
      }
    }
  }
}

TEST(PlacedLayout, LendsGroupsWhatIsLeft) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(PlacedLayoutFor(8, 256 << 10, 8).group_slots, 8);
  EXPECT_EQ(PlacedLayoutFor(8, 256 << 10, 1).group_slots, 1);
  EXPECT_EQ(PlacedLayoutFor(8, kMiB, 8).group_slots, 3);
  EXPECT_EQ(PlacedLayoutFor(8, kMiB, 64).group_slots, 3);
  for (const int ranks : {2, 3, 8, 64, 512}) {
    for (const int window : {2, 8, 64}) {
      for (const std::size_t segment_bytes : {256 * kMiB / 1024, kMiB}) {
        EXPECT_GE(PlacedLayoutFor(ranks, segment_bytes, window).group_slots, 2)
            << ranks << " ranks";
      }
    }
  }
}

TEST(PlacedLayout, TakesAsManySlotsAsSegmentsButNotMoreThan64Megabytes) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(PlacedLayoutFor(8, 256 << 10, 8).slots, 8);
  EXPECT_LE(PlacedSlotBytes(8, 256 << 10, 8), 21 * kMiB);
  EXPECT_EQ(PlacedLayoutFor(8, kMiB, 8).slots, 7);
  for (const int ranks : {2, 8, 64, 512}) {
    for (const int window : {1, 8, 64}) {
      const std::size_t bytes = PlacedSlotBytes(ranks, 64 * kMiB, window);
      EXPECT_LE(bytes, 64'000'000U) << ranks << " ranks";
      EXPECT_GT(bytes, kMiB);
      EXPECT_LE(PlacedLayoutFor(ranks, 64 * kMiB, window).slots, window);
    }
  }
}

}  // namespace
}  // namespace gradientflow
