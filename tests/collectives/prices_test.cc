// What prices are made of, and how calls are cut by them.
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

// Branches are compared with the trees that schedules are made of.
TEST(HostMap, KnowsWhichBranchesOfATreeLeadToOtherHosts) {
  for (const Topology& topology :
       {Topology{{0, 0, 1, 1}}, Topology{{0, 1, 1, 1, 2, 2, 0}},
        Topology{{4, 4, 4, 4, 9, 9, 9, 9, 9}}, Topology()}) {
    const int size =
        topology.host.empty() ? 6 : static_cast<int>(topology.host.size());
    HostMap hosts(size, topology);
    for (int root = size - 1; root >= 0; --root) {
      hosts.SetRoot(root, topology);
      std::vector<double> crossing(8);
      for (int rank = 0; rank < size; ++rank) {
        const TreeNode node = TreeNodeOf(rank, size, root);
        if (node.parent < 0) continue;
        const int length = node.place & -node.place;
        const auto host = [&](int r) {
          return topology.host.empty() ? r : topology.host[std::size_t(r)];
        };
        if (host(rank) != host(node.parent)) {
          ++crossing[std::size_t(std::bit_width(unsigned(length)) - 1)];
        }
      }
      for (int k = 0; k < hosts.doublings(); ++k) {
        const double branches = hosts.BranchShare(k) * size;
        EXPECT_NEAR(hosts.Branch(k) * branches, crossing[std::size_t(k)], 1e-9)
            << size << " ranks, root " << root << ", branch " << k;
      }
    }
  }
}

CallQuestion Ask(int size, std::size_t count) {
  CallQuestion question;
  question.hosts = HostMap(size);
  question.count = count;
  return question;
}

// At 256 KiB among eight ranks halving-doubling exchanges messages of 128 KiB,
// a ring of 32 KiB.
TEST(ChooseAlgorithm, KnowsThatLongMessagesCostMore) {
  CallQuestion question = Ask(8, 64 << 10);
  LinkModel link{20e-6, 1e-9, 0, 0};
  question.model = {link, link};
  const auto predict = [&](const CollectiveAlgorithm* algorithm) {
    return PredictSeconds(CollectiveKind::kAllreduce, *algorithm, question);
  };
  const double sent = 2 * 7 * 32768;
  EXPECT_NEAR(predict(&allreduce::kRing), 14 * 20e-6 + sent * 1e-9, 1e-12);
  EXPECT_NEAR(predict(&allreduce::kHalvingDoubling), 6 * 20e-6 + sent * 1e-9,
              1e-12);
  link.long_seconds_per_byte = 4e-9;
  question.model = {link, link};
  EXPECT_NEAR(predict(&allreduce::kRing), 14 * 20e-6 + sent * 1e-9, 1e-12);
  // 96 of 128 KiB are late in their message, and 32 of 64 KiB.
  EXPECT_NEAR(predict(&allreduce::kHalvingDoubling),
              6 * 20e-6 + sent * 1e-9 + 2 * (96 + 32) * 1024 * 4e-9, 1e-12);
}

// The root takes in seven messages, and each is half of an exchange for it, or
// an eighth of what an exchange among all ranks costs them together. It waits
// as long as if all exchanged something.
TEST(ChooseAlgorithm, PricesMessagesInOneDirection) {
  CallQuestion question = Ask(8, 1000);
  const LinkModel alone{4e-6, 1e-9, 0, 20e-6};
  LinkModel together{8e-6, 2e-9, 0, 40e-6};
  question.alone = CostModel{alone, alone};
  question.model = {together, together};
  const auto predict = [&] {
    return PredictSeconds(CollectiveKind::kReduce, collectives::kDirectReduce,
                          question);
  };
  EXPECT_NEAR(predict(), 8e-6 + 7 * (10e-6 + 4000e-9), 1e-12);
  together = {80e-6, 16e-9, 0, 400e-6};
  question.model = {together, together};
  EXPECT_NEAR(predict(), 80e-6 + 7 * (50e-6 + 8000e-9), 1e-12);
}

// One of the three other ranks is on the same host. Messages to it cost less.
TEST(ChooseAlgorithm, KnowsHowManyMessagesStayInTheHost) {
  CallQuestion question = Ask(4, 2);
  question.hosts = HostMap(4, {{0, 0, 1, 1}});
  question.model = {LinkModel{1e-6, 0, 0, 2e-6}, LinkModel{10e-6, 0, 0, 40e-6}};
  const auto predict = [&](CollectiveKind kind, const auto& algorithm) {
    return PredictSeconds(kind, algorithm, question);
  };
  const double all = 10e-6 + 2 * 40e-6 + 2e-6;
  EXPECT_DOUBLE_EQ(
      predict(CollectiveKind::kAllgather, collectives::kDirectAllgather), all);
  EXPECT_DOUBLE_EQ(
      predict(CollectiveKind::kAllToAll, collectives::kPairwiseAllToAll), all);
  EXPECT_DOUBLE_EQ(predict(CollectiveKind::kReduceScatter,
                           collectives::kDirectReduceScatter),
                   all);
  EXPECT_DOUBLE_EQ(predict(CollectiveKind::kAllreduce, allreduce::kOneRound),
                   all);
  // A root only sends, which is half of an exchange.
  EXPECT_DOUBLE_EQ(
      predict(CollectiveKind::kScatter, collectives::kDirectScatter),
      10e-6 + 40e-6 + 1e-6);
}

// What does not fit into TCP's first window shares the line of the root with
// its other messages. Those that stay in the host use no line.
TEST(ChooseAlgorithm, PricesATreeWhoseMessagesShareALine) {
  CallQuestion question = Ask(8, 8192);
  const LinkModel line{20e-6, 8e-9, 0, 0};
  question.model = {LinkModel{2e-6, 1e-9, 0, 0}, line};
  const auto predict = [&](Topology topology) {
    question.hosts = HostMap(question.size(), topology);
    question.hosts.SetRoot(0, topology);
    return PredictSeconds(CollectiveKind::kBroadcast,
                          collectives::kTreeBroadcast, question);
  };
  const Topology apart{{0, 1, 2, 3, 4, 5, 6, 7}};
  // The first child shares it with two others, and its own first with one.
  const double rounds = 3 * (20e-6 + 32768 * 8e-9);
  EXPECT_NEAR(predict(apart), rounds + (2 + 1) * (32768 - 14480) * 8e-9, 1e-12);
  // The last round stays in the hosts, and so only one shares a line.
  EXPECT_NEAR(
      predict({{0, 0, 1, 1, 2, 2, 3, 3}}),
      2 * (20e-6 + 32768 * 8e-9) + 2e-6 + 32768 * 1e-9 + (32768 - 14480) * 8e-9,
      1e-12);
  // What fits into it is sent in turn.
  question.count = 3000;
  EXPECT_NEAR(predict(apart), 3 * (20e-6 + 12000 * 8e-9), 1e-12);
  // At most 128 KiB of a message wait when the next one begins. A segment that
  // follows waits until the root has sent three messages.
  question.count = 128 << 10;
  question.segment_bytes = 256 << 10;
  EXPECT_NEAR(predict(apart),
              3 * (20e-6 + 2 * 262144 * 8e-9) + 3 * (131072 - 14480) * 8e-9,
              1e-12);
}

// Four segments keep 4 of 7 of the hops of a chain of five ranks busy, and two
// in a window half of them; the first one has a fifth of the ranks.
TEST(ChooseAlgorithm, KnowsHowManyRanksOfAChainWork) {
  CallQuestion question = Ask(5, 4 << 13);
  question.segment_bytes = 32 << 10;
  const LinkModel alone{0, 1e-9, 0, 0};
  const LinkModel together{0, 7e-9, 0, 0};
  question.alone = CostModel{alone, alone};
  question.model = {together, together};
  const auto predict = [&] {
    return PredictSeconds(CollectiveKind::kBroadcast,
                          collectives::kChainBroadcast, question);
  };
  EXPECT_NEAR(predict(), 32768e-9 * (4 * 1.4 + 3 * 4), 1e-12);
  question.window = 2;
  EXPECT_NEAR(predict(), 32768e-9 * (4 * 1.4 + 3 * 3.5), 1e-12);
}

// How often the slowest block of a ring crosses between hosts: once around,
// less a hop, and twice around, less two hops.
struct RingOf {
  std::vector<int> host;  // Of each rank.
  double once = 0;
  double twice = 0;
};

TEST(ChooseAlgorithm, PricesARingByItsSlowestBlock) {
  const RingOf rings[] = {{{0, 0, 1, 1}, 2, 3},
                          {{0, 1, 1, 1}, 2, 4},
                          {{0, 1, 2, 3, 3, 3, 3, 3}, 4, 8},
                          {{0, 0, 0, 1, 1, 1}, 2, 4},
                          {{0, 1, 2}, 2, 4}};
  for (const RingOf& ring : rings) {
    SCOPED_TRACE(::testing::PrintToString(ring.host));
    const double hops = static_cast<double>(ring.host.size()) - 1;
    CallQuestion question = Ask(static_cast<int>(ring.host.size()), 100);
    question.hosts = HostMap(question.size(), {ring.host});
    question.model = {LinkModel{1e-6, 0, 0, 2e-6},
                      LinkModel{10e-6, 0, 0, 40e-6}};
    const auto expect = [&](CollectiveKind kind, const auto& algorithm,
                            double all, double far) {
      EXPECT_NEAR(PredictSeconds(kind, algorithm, question),
                  far * 50e-6 + (all - far) * 3e-6, 1e-12);
    };
    expect(CollectiveKind::kAllgather, collectives::kRingAllgather, hops,
           ring.once);
    expect(CollectiveKind::kAllreduce, allreduce::kRing, 2 * hops, ring.twice);
  }
}

TEST(CutOf, MessagesDoNotShrinkAsRanksAreAdded) {
  CallQuestion question = Ask(8, 100 << 20);
  question.segment_bytes = 256 << 10;
  const auto segment_bytes = [&](int size, CollectiveKind kind,
                                 const CollectiveAlgorithm* row) {
    question.hosts = HostMap(size);
    return 4 * CutOf(kind, *row, question).elements;
  };
  const auto expect = [&](const CollectiveAlgorithm& row, int size,
                          unsigned message) {
    EXPECT_EQ(segment_bytes(size, CollectiveKind::kAllreduce, &row),
              static_cast<std::size_t>(size) * message << 10)
        << row.name << " among " << size;
  };
  for (const auto& [size, message] : {std::pair{2, 128U},
                                      {8, 32U},
                                      {16, 64U},
                                      {32, 128U},
                                      {64, 128U},
                                      {512, 16U}}) {
    expect(allreduce::kRing, size, message);
    expect(allreduce::kTwoSync, size, message);
  }
  for (const auto& [size, least_message] :
       {std::pair{8, 32U}, {48, 32U}, {256, 32U}, {512, 16U}}) {
    expect(allreduce::kHalvingDoubling, size, least_message);
  }
  // Inside one host there is no line to keep busy while messages are handled.
  question.count = 250'000;
  const auto segments = [&](const Topology& topology) {
    question.hosts = HostMap(4, topology);
    return CutOf(CollectiveKind::kAllreduce, allreduce::kTwoSync, question)
        .segments;
  };
  EXPECT_EQ(segments({{0, 0, 0, 0}}), 1);
  EXPECT_EQ(segments({{0, 0, 0, 1}}), 4);
  question.count = 300'000;
  EXPECT_EQ(segments({{0, 0, 0, 0}}), 5);
  question.count = 100 << 20;
  // With a block per rank the memory of all blocks is bounded.
  for (const auto& [size, block] :
       {std::pair{2, 256U}, {16, 256U}, {64, 64U}, {1024, 32U}}) {
    EXPECT_EQ(segment_bytes(size, CollectiveKind::kReduceScatter,
                            &collectives::kDirectReduceScatter),
              std::size_t{block} << 10);
  }
  // The setting holds where it is larger than what segments grow to.
  question.segment_bytes = 16 << 20;
  EXPECT_EQ(segment_bytes(100, CollectiveKind::kAllreduce, &allreduce::kRing),
            16U << 20);
}

// A chain of eight ranks at 1 Gb/s: 256 KiB in one segment would cross seven
// lines one after the other.
TEST(CutOf, ShortensSegmentsThatPassThroughTheRanksWhereThatIsFaster) {
  for (const auto& [kind, row] :
       {std::pair{CollectiveKind::kBroadcast, &collectives::kChainBroadcast},
        {CollectiveKind::kReduce, &collectives::kChainReduce}}) {
    CallQuestion question = Ask(8, 64 << 10);
    question.segment_bytes = 256 << 10;
    LinkModel link{20e-6, 8e-9, 0, 10e-6};
    question.model = {link, link};
    const auto kib = [&, of = kind, by = row] {
      return CutOf(of, *by, question).elements / 256;
    };
    const auto predict = [&, row = row, kind = kind] {
      return PredictSeconds(kind, *row, question);
    };
    EXPECT_EQ(kib(), 32U);
    const double hop = 30e-6 + 8e-9 * (32 << 10);
    EXPECT_NEAR(predict(), 7 * hop + 7 * (hop - 20e-6), 1e-12);
    // What a message costs itself is to be paid for each segment.
    link.message_seconds = 2e-3;
    question.model = {link, link};
    EXPECT_EQ(kib(), 128U);
    // Long buffers keep all ranks busy with segments as they are set.
    question.count = 64 << 20;
    EXPECT_EQ(kib(), 256U);
    question.count = 1 << 10;
    EXPECT_EQ(CutOf(kind, *row, question).segments, 1);
    question.count = 0;
    EXPECT_EQ(CutOf(kind, *row, question).segments, 0);
    question.count = 64 << 10;
    question.segment_bytes = 4 << 10;
    EXPECT_EQ(kib(), 4U);
  }
}

}  // namespace
}  // namespace gradientflow
