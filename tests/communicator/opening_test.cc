#include "gradientflow/communicator/opening.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/communicator/agreement.h"
#include "tests/communicator/fabrics.h"

namespace gradientflow::testing {
namespace {

std::vector<RankFacts> ThreeGpus() {
  return {{1, 11, 22809}, {1, 12, 22809}, {1, 13, 22809}};
}

// The reason why `ranks` cannot use NCCL; empty if they can.
std::string WhyNot(const std::vector<RankFacts>& ranks) {
  std::string why;
  const bool can = AllCanNccl(ranks, &why);
  EXPECT_EQ(can, why.empty()) << why;
  return why;
}

// Ranks may be built with different standard libraries. The value is the start
// of an HMAC-SHA256 that Python computed.
TEST(Agreement, HasAHashThatDependsOnNoLibrary) {
  EXPECT_EQ(AgreementHash("size=2\nalgorithm=auto\n"), 0xc355a3071172ed92);
}

TEST(RankFacts, CanUseNcclEachWithItsOwnGpu) {
  EXPECT_EQ(WhyNot(ThreeGpus()), "");
  EXPECT_FALSE(Mixed(ThreeGpus()));
}

TEST(RankFacts, CannotUseNcclWithARankOnTheCpu) {
  std::vector<RankFacts> ranks = ThreeGpus();
  ranks[1] = {};
  EXPECT_EQ(WhyNot(ranks), "rank 1 has its gradients on the CPU");
  EXPECT_TRUE(Mixed(ranks));
}

TEST(RankFacts, CannotUseNcclThatIsNotThere) {
  std::vector<RankFacts> ranks = ThreeGpus();
  ranks[2].nccl_version = 0;
  EXPECT_EQ(WhyNot(ranks), "rank 2 has no NCCL");
}

// NCCL refuses every other version, not only other major ones.
TEST(RankFacts, CannotUseNcclOfTwoVersions) {
  std::vector<RankFacts> ranks = ThreeGpus();
  ranks[2].nccl_version = 22808;
  EXPECT_EQ(WhyNot(ranks), "rank 2 has NCCL 2.28.8, rank 0 has 2.28.9");
}

TEST(RankFacts, CannotUseNcclOnASharedGpu) {
  std::vector<RankFacts> ranks = ThreeGpus();
  ranks[2].device_id = 12;
  EXPECT_EQ(WhyNot(ranks), "ranks 1 and 2 share a GPU");
}

TEST(Places, AreUsedOnlyIfAllRanksHaveThem) {
  std::vector<RankFacts> ranks(3);
  EXPECT_EQ(RankWithoutPlaces(ranks), 0);
  for (RankFacts& rank : ranks) rank.places = 1;
  EXPECT_EQ(RankWithoutPlaces(ranks), -1);
  ranks[2].places = 0;
  EXPECT_EQ(RankWithoutPlaces(ranks), 2);
}

TEST(GatherTexts, BringsTextsOfAnyLengthToAllRanks) {
  std::minstd_rand random(3);
  for (const int size : {1, 2, 3, 5, 7, 8}) {
    std::vector<std::string> texts;
    for (int r = 0; r < size; ++r) {
      const std::size_t bytes = r % 3 == 1 ? 0 : random() % 5000;
      texts.emplace_back(bytes, static_cast<char>('a' + r));
    }
    Fabrics ranks(size);
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        const OpeningArgs args{&ranks.executor(r), &ranks.fabric(r),
                               &ranks.clock(), Clock::Time::max()};
        const auto all = GatherTexts(args, texts[static_cast<std::size_t>(r)]);
        ASSERT_TRUE(all.ok()) << all.status().message();
        EXPECT_EQ(all.value(), texts) << "rank " << r << " of " << size;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace gradientflow::testing
