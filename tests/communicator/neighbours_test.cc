#include "gradientflow/communicator/neighbours.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/communicator/card.h"

namespace gradientflow {
namespace {

// `hosts` names the host of each rank.
std::vector<Card> Cards(const std::vector<std::string>& hosts) {
  std::vector<Card> cards;
  for (const std::string& host : hosts) {
    Card card;
    card.host_id = host;
    card.addresses["shm"] = "here";
    card.descriptors = 1000;
    cards.push_back(card);
  }
  return cards;
}

TEST(GroupOf, NumbersHostsInTheOrderOfRanks) {
  const CallGroup group = GroupOf(2, Cards({"b", "a", "b", "c"}));
  EXPECT_EQ(group.rank, 2);
  EXPECT_EQ(group.size, 4);
  EXPECT_EQ(group.topology.host, (std::vector<int>{0, 1, 0, 2}));
  EXPECT_TRUE(group.hosts_share);
  EXPECT_FALSE(group.all_share);
  EXPECT_TRUE(GroupOf(0, Cards({"a", "a"})).all_share);
  EXPECT_FALSE(GroupOf(0, Cards({"a", "b"})).hosts_share);
}

TEST(GroupOf, CutsAHostOfTooManyRanksIntoEqualParts) {
  std::vector<std::string> hosts(130, "big");
  hosts.emplace_back("small");
  const CallGroup group = GroupOf(0, Cards(hosts));
  EXPECT_TRUE(group.hosts_share);
  std::vector<int> ranks(4);
  for (const int host : group.topology.host) {
    ++ranks.at(static_cast<std::size_t>(host));
  }
  std::sort(ranks.begin(), ranks.end());
  EXPECT_EQ(ranks, (std::vector<int>{1, 43, 43, 44}));
}

TEST(GroupOf, OneRankWithoutMemoryIsFoundAndKeepsAllFromSharing) {
  std::vector<Card> cards = Cards({"a", "a", "b", "b", "c"});
  EXPECT_EQ(RankWithoutMemory(cards), -1);
  cards[4].addresses["shm"].clear();
  EXPECT_EQ(RankWithoutMemory(cards), -1) << "it is alone";
  cards[3].addresses["shm"].clear();
  EXPECT_EQ(RankWithoutMemory(cards), 3);
  EXPECT_FALSE(GroupOf(0, cards).hosts_share);
  for (Card& card : cards) card.addresses["shm"].clear();
  EXPECT_EQ(RankWithoutMemory(cards), -1) << "nobody wants to";
}

CallGroup GroupOf(const std::vector<std::string>& hosts, bool share) {
  std::vector<Card> cards = Cards(hosts);
  if (!share) cards[0].addresses.clear();
  return GroupOf(0, cards);
}

// States the rule by the distance, not by steps of powers of two.
bool AreNear(const CallGroup& group, int a, int b) {
  const int ahead = (b - a + group.size) % group.size;
  const int behind = group.size - ahead;
  return (ahead & (ahead - 1)) == 0 || (behind & (behind - 1)) == 0 ||
         (group.hosts_share &&
          group.topology.host[a] == group.topology.host[b]);
}

TEST(Neighbours, AreTheHostAndPowersOfTwo) {
  for (const bool share : {false, true}) {
    for (int size = 1; size <= 70; ++size) {
      std::vector<std::string> hosts;
      for (int r = 0; r < size; ++r) hosts.push_back(std::to_string(r / 6));
      const CallGroup group = GroupOf(hosts, share);
      for (int rank = 0; rank < size; ++rank) {
        std::vector<int> expected, all;
        for (int r = 0; r < size; ++r) {
          if (r != rank) all.push_back(r);
          if (r != rank && AreNear(group, rank, r)) expected.push_back(r);
        }
        ASSERT_EQ(NeighboursOf(group, rank, true), expected);
        ASSERT_EQ(NeighboursOf(group, rank, false), all);
      }
    }
  }
}

TEST(Neighbours, AreFewAndMutual) {
  const std::vector<std::string> alone(512, "");
  const CallGroup group = GroupOf(alone, false);
  std::vector<std::vector<int>> of;
  for (int r = 0; r < 512; ++r) of.push_back(NeighboursOf(group, r, true));
  for (int r = 0; r < 512; ++r) {
    EXPECT_EQ(of[r].size(), 17U);
    for (const int near : of[r]) {
      EXPECT_TRUE(std::binary_search(of[near].begin(), of[near].end(), r));
    }
  }
}

TEST(Descriptors, FewAreEnoughForLinksThatAreNeeded) {
  std::vector<Card> cards = Cards(std::vector<std::string>(512, "x"));
  for (Card& card : cards) {
    card.addresses.clear();
    card.descriptors = 8 + 17 * 2;
  }
  const CallGroup group = GroupOf(0, cards);
  EXPECT_TRUE(CheckDescriptors(group, cards, 2, true).ok());
  EXPECT_EQ(CheckDescriptors(group, cards, 2, false).message(),
            "rank 0 needs 1030 file descriptors for its links and may open 42 "
            "more: raise its hard limit (ulimit -Hn), or set connect=needed");
  cards[300].descriptors = 41;
  EXPECT_EQ(CheckDescriptors(group, cards, 2, true).message(),
            "rank 300 needs 42 file descriptors for its links and may open 41 "
            "more: raise its hard limit (ulimit -Hn)");
}

TEST(Descriptors, TooFewAreNamedOnEveryRankAlike) {
  std::vector<Card> cards = Cards(std::vector<std::string>(100, "x"));
  for (std::size_t r = 0; r < cards.size(); ++r) {
    cards[r].host_id = std::to_string(r / 2);
  }
  const CallGroup group = GroupOf(7, cards);
  // 3 for the neighbour, 3 for each of the others, 8 besides.
  EXPECT_TRUE(CheckDescriptors(group, cards, 3, false).ok());
  cards[50].descriptors = 304;
  const Status status = CheckDescriptors(group, cards, 3, false);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "rank 50 needs 305 file descriptors for its links and may open 304 "
            "more: raise its hard limit (ulimit -Hn), or set connect=needed, "
            "or set connections=1");
  cards[50].descriptors = 305;
  EXPECT_TRUE(CheckDescriptors(group, cards, 3, false).ok());
}

TEST(Descriptors, TheLimitIsRaisedAsFarAsNeeded) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(200, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_LT(RoomForDescriptors(0), 200U);
  rlimit after = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, low.rlim_cur);
  if (before.rlim_max >= 1000) {
    EXPECT_GE(RoomForDescriptors(500), 499U);
    EXPECT_LE(RoomForDescriptors(500), 501U);
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
    EXPECT_LT(after.rlim_cur, 1000U);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Cards, TellHowManyDescriptorsTheRankMayOpen) {
  Card card;
  card.descriptors = 12345;
  const Result<Card> read = DecodeCard(0, EncodeCard(card));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read.value().descriptors, 12345U);
}

}  // namespace
}  // namespace gradientflow
