#include "gradientflow/csc/packed_ring.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace gradientflow {
namespace {

constexpr std::size_t kChunk = 10;

std::vector<Bucket> Buckets(const std::vector<std::size_t>& elements) {
  std::vector<Bucket> buckets;
  for (const std::size_t count : elements) {
    Bucket bucket;
    bucket.elements = count;
    buckets.push_back(bucket);
  }
  return buckets;
}

TEST(PackedRing, UsualStepsHaveAPlaceForEachBucket) {
  const std::vector<Bucket> buckets = Buckets({30, 20, 10, 37});
  PackedRing ring;
  ASSERT_TRUE(ring.Place(buckets, kChunk, 100));
  const std::size_t begins[] = {0, 30, 50, 60};
  for (std::size_t b = 0; b < 4; ++b) {
    EXPECT_EQ(ring.begin(b), begins[b]);
    EXPECT_EQ(ring.needs_back(b), 0U);
  }
}

TEST(PackedRing, HoldsAUsualStepOrTwoBucketsButNoMoreThanThePool) {
  const std::vector<Bucket> buckets = Buckets({30, 40, 30, 30, 5});
  EXPECT_EQ(PackedRing::Capacity(buckets, kChunk, 20), 80U);
  EXPECT_EQ(PackedRing::Capacity(buckets, kChunk, 110), 110U);
  EXPECT_EQ(PackedRing::Capacity(buckets, kChunk, 1000), 140U);
  EXPECT_EQ(PackedRing::Capacity(Buckets({60}), kChunk, 20), 60U);
}

TEST(PackedRing, ABucketThatHasNoRoomIsRefused) {
  PackedRing ring;
  EXPECT_FALSE(ring.Place(Buckets({10, 41}), kChunk, 40));
  EXPECT_TRUE(ring.Place(Buckets({10, 40}), kChunk, 40));
  EXPECT_EQ(ring.needs_back(1), 1U);
}

// Plays a step in which nothing is unpacked before it has to be.
TEST(PackedRing, NoBucketOverwritesOneThatIsStillToBeUnpacked) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::size_t> sizes(1 + random() % 30);
    for (std::size_t& size : sizes) size = 1 + random() % 60;
    const std::vector<Bucket> buckets = Buckets(sizes);
    const std::size_t capacity =
        PackedRing::Capacity(buckets, kChunk, random() % 200);
    PackedRing ring;
    ASSERT_TRUE(ring.Place(buckets, kChunk, capacity));
    std::vector<int> owner(capacity, -1);
    std::size_t back = 0;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      ASSERT_LE(ring.needs_back(b), b);
      ASSERT_GE(ring.needs_back(b), back) << "order";
      back = ring.needs_back(b);
      for (int& one : owner) {
        if (one >= 0 && static_cast<std::size_t>(one) < back) one = -1;
      }
      ASSERT_LE(ring.begin(b) + sizes[b], capacity);
      for (std::size_t i = 0; i < sizes[b]; ++i) {
        int& one = owner[ring.begin(b) + i];
        ASSERT_EQ(one, -1) << "bucket " << b;
        one = static_cast<int>(b);
      }
    }
  }
}

}  // namespace
}  // namespace gradientflow
