#include "gradientflow/communicator/introduction.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/communicator/card.h"
#include "gradientflow/communicator/neighbours.h"

// What ranks are told of each other, from the cards of all.
namespace gradientflow {
namespace {

const IntroduceArgs kAuto = {"auto", 2, false};

std::vector<Card> CardsOn(const std::vector<std::string>& hosts) {
  std::vector<Card> cards;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    Card card;
    card.host_id = hosts[r];
    card.addresses["shm"] = "memory of " + std::to_string(r);
    card.addresses["tcp"] = "10.0.0.1:" + std::to_string(1000 + r);
    card.nonce[0] = static_cast<std::byte>(r);
    card.descriptors = 100000;
    card.agreement = "a=1\n";
    cards.push_back(card);
  }
  return cards;
}

std::vector<std::string> Encoded(const std::vector<Card>& cards) {
  std::vector<std::string> texts;
  texts.reserve(cards.size());
  for (const Card& card : cards) texts.push_back(EncodeCard(card));
  return texts;
}

Result<Introduction> Introduced(const std::vector<Card>& cards, int rank,
                                const IntroduceArgs& args = kAuto) {
  const auto texts = IntroduceRanks(args, Encoded(cards), {rank});
  if (!texts.ok()) return texts.status();
  return DecodeIntroduction(static_cast<int>(cards.size()),
                            texts.value().front());
}

TEST(Introduction, OfOneRankIsTheSameWhoeverElseIsIntroduced) {
  const auto cards = Encoded(CardsOn({"a", "b", "a"}));
  const auto all = IntroduceRanks(kAuto, cards, {0, 1, 2});
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_EQ(all.value().size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    const auto one = IntroduceRanks(kAuto, cards, {rank});
    ASSERT_TRUE(one.ok());
    EXPECT_EQ(one.value().front(), all.value()[static_cast<std::size_t>(rank)]);
  }
}

TEST(Introduction, NamesTheTransportsThatBothRanksHave) {
  std::vector<Card> cards = CardsOn({"a", "b", "a", "a"});
  const auto two = Introduced(cards, 2);
  ASSERT_TRUE(two.ok()) << two.status().message();
  EXPECT_EQ(two.value().AddressesOf("shm"),
            (std::vector<std::string>{"memory of 0", "", "", "memory of 3"}));
  EXPECT_EQ(two.value().AddressesOf("tcp"),
            (std::vector<std::string>{"10.0.0.1:1000", "10.0.0.1:1001", "",
                                      "10.0.0.1:1003"}));
  EXPECT_EQ(two.value().without_memory, -1);
  EXPECT_TRUE(two.value().hosts_share);

  cards[3].addresses["shm"].clear();
  const auto without = Introduced(cards, 2);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without.value().without_memory, 3);
  EXPECT_FALSE(without.value().hosts_share);
  EXPECT_EQ(without.value().AddressesOf("shm"), std::vector<std::string>(4));
  EXPECT_EQ(without.value().AddressesOf("tcp")[3], "10.0.0.1:1003");
}

// What rank 0 sends to open a job of 512 ranks.
TEST(Introduction, OfManyRanksIsShort) {
  for (const int per_host : {1, 8, 64}) {
    std::vector<std::string> hosts;
    for (int r = 0; r < 512; ++r) {
      hosts.push_back(std::to_string(r / per_host));
    }
    std::vector<Card> cards = CardsOn(hosts);
    for (std::size_t r = 0; r < cards.size(); ++r) {
      cards[r].addresses["tcp"] =
          "10.100." + std::to_string(r) + ".200:54321@25000";
      cards[r].addresses["shm"] = std::string(32, 'f');
      cards[r].agreement = std::string(40 << 10, 'a');
    }
    std::vector<int> ranks(cards.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto texts = IntroduceRanks({"auto", 2, true}, Encoded(cards), ranks);
    ASSERT_TRUE(texts.ok()) << texts.status().message();
    std::size_t bytes = 0;
    for (const std::string& text : texts.value()) bytes += text.size();
    EXPECT_LE(bytes, 4U << 20) << per_host << " ranks per host";
    RecordProperty("bytes_with_" + std::to_string(per_host) + "_ranks_per_host",
                   static_cast<int>(bytes));
  }
}

TEST(Introduction, BringsTheHostsOfAllRanks) {
  std::minstd_rand random(7);
  for (const int size : {1, 2, 3, 7, 64, 130, 513}) {
    std::vector<std::string> hosts;
    for (int r = 0; r < size; ++r) {
      hosts.push_back("host " +
                      std::to_string(r % 3 == 0 ? r / 8 : random() % 9));
    }
    const std::vector<Card> cards = CardsOn(hosts);
    const auto last = Introduced(cards, size - 1);
    ASSERT_TRUE(last.ok()) << last.status().message();
    const CallGroup expected = GroupOf(size - 1, cards);
    const CallGroup group = GroupOf(size - 1, last.value());
    EXPECT_EQ(group.topology.host, expected.topology.host) << size;
    EXPECT_EQ(group.rank, size - 1);
    EXPECT_EQ(group.size, size);
    EXPECT_EQ(group.hosts_share, expected.hosts_share) << size;
    EXPECT_EQ(group.all_share, expected.all_share) << size;
  }
}

// More ranks than can share memory as one count as several hosts, but they
// share the cores and the GPUs of one.
TEST(Introduction, SaysHowManyRanksAHostReallyHas) {
  std::vector<std::string> hosts(72, "a");
  hosts[3] = hosts[71] = "b";
  const std::vector<Card> cards = CardsOn(hosts);
  ASSERT_FALSE(GroupOf(0, cards).all_share);
  int expected = 0;
  for (int rank = 0; rank < 71; ++rank) {
    if (rank == 3) continue;
    const auto told = Introduced(cards, rank);
    ASSERT_TRUE(told.ok()) << told.status().message();
    EXPECT_EQ(told.value().local.rank, expected++);
    EXPECT_EQ(told.value().local.ranks, 70);
  }
  const auto last = Introduced(cards, 71);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(last.value().local.rank, 1);
  EXPECT_EQ(last.value().local.ranks, 2);
}

TEST(Introduction, SecretsDifferWithTheJobAndWithEveryNonce) {
  std::vector<Card> cards = CardsOn({"a", "b", "c"});
  const Bits256 job = HmacSha256("job", "");
  const auto first = Introduced(cards, 1);
  const auto other = Introduced(cards, 2);
  ASSERT_TRUE(first.ok() && other.ok());
  const Bits256 secret = SessionSecret(job, first.value());
  EXPECT_EQ(secret, SessionSecret(job, other.value()));
  EXPECT_NE(secret, SessionSecret(HmacSha256("bob", ""), first.value()));
  cards[2].nonce[31] = std::byte{1};
  const auto fresh = Introduced(cards, 1);
  ASSERT_TRUE(fresh.ok());
  EXPECT_NE(secret, SessionSecret(job, fresh.value()));
}

TEST(Introduction, IsRefusedForAllAlike) {
  std::vector<Card> cards = CardsOn({"a", "b", "a"});
  EXPECT_EQ(Introduced(cards, 0, {"shm", 2, false}).status().code(),
            StatusCode::kInvalidArgument);
  cards[2].agreement = "a=2\n";
  const Status differ = Introduced(cards, 0).status();
  EXPECT_EQ(differ.message(),
            "the ranks disagree: rank 0 has a=1, rank 2 has a=2");
  cards[1].failure = Status(StatusCode::kResourceExhausted, "no memory");
  const Status failed = Introduced(cards, 0).status();
  EXPECT_EQ(failed.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(failed.message(), "rank 1 cannot join: no memory");
  std::vector<std::string> texts = Encoded(cards);
  texts[2] = "[]";
  EXPECT_EQ(IntroduceRanks(kAuto, texts, {0}).status().code(),
            StatusCode::kDataLoss);
}

TEST(Introduction, ThatMakesNoSenseIsAnError) {
  const auto text =
      IntroduceRanks(kAuto, Encoded(CardsOn({"a", "b", "a"})), {1});
  ASSERT_TRUE(text.ok());
  const std::string good = text.value().front();
  ASSERT_TRUE(DecodeIntroduction(3, good).ok());
  EXPECT_FALSE(DecodeIntroduction(2, good).ok());
  EXPECT_FALSE(DecodeIntroduction(4, good).ok());
  std::minstd_rand random(11);
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    const std::size_t at = random() % bad.size();
    switch (random() % 3) {
      case 0:
        bad[at] = static_cast<char>(random());
        break;
      case 1:
        bad.erase(at, 1 + random() % 9);
        break;
      default:
        bad.insert(at, 1 + random() % 3, "0123456789*,\"{}[]-"[random() % 18]);
    }
    const auto read = DecodeIntroduction(3, bad);
    if (!read.ok()) continue;
    EXPECT_EQ(read.value().hosts.size(), 3U) << bad;
    for (const int host : read.value().hosts) EXPECT_LT(host, 3) << bad;
    EXPECT_LT(read.value().local.rank, read.value().local.ranks) << bad;
    EXPECT_LE(read.value().local.ranks, 3) << bad;
    EXPECT_EQ(read.value().AddressesOf("tcp").size(), 3U) << bad;
  }
}

}  // namespace
}  // namespace gradientflow
