#include "gradientflow/csc/returning_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <set>
#include <vector>

namespace gradientflow::testing {
namespace {

struct Part {
  std::size_t bucket;
  std::size_t begin;
  std::size_t count;
};

struct Step {
  std::vector<std::size_t> chunks;
  std::vector<Bucket> buckets;
  std::vector<Part> parts;           // In random order.
  std::vector<std::size_t> missing;  // Elements, by chunk of `chunks`.
};

// Every third chunk or so of a pool, in buckets of some chunks each, which come
// back in parts of up to `most` elements.
Step MakeStep(std::size_t elements, std::size_t width, std::size_t most,
              std::mt19937& random) {
  Step step;
  for (std::size_t begin = 0; begin < elements; begin += width) {
    if (random() % 3 != 0) continue;
    const std::size_t count = std::min(width, elements - begin);
    if (step.buckets.empty() || random() % 3 == 0) step.buckets.emplace_back();
    step.chunks.push_back(begin / width);
    step.missing.push_back(count);
    step.buckets.back().elements += count;
  }
  for (std::size_t b = 0; b < step.buckets.size(); ++b) {
    for (std::size_t begin = 0; begin < step.buckets[b].elements;) {
      const std::size_t left = step.buckets[b].elements - begin;
      const std::size_t count =
          std::min<std::size_t>(left, 1 + random() % most);
      step.parts.push_back({b, begin, count});
      begin += count;
    }
  }
  std::shuffle(step.parts.begin(), step.parts.end(), random);
  return step;
}

// Element by element: counts down the chunks of a part, and returns those of
// which nothing is missing any more.
std::set<std::size_t> CountDown(Step& step, const Part& part,
                                std::size_t width) {
  std::size_t before = 0;
  for (std::size_t b = 0; b < part.bucket; ++b) {
    before += step.buckets[b].elements;
  }
  std::set<std::size_t> back;
  for (std::size_t i = 0; i < part.count; ++i) {
    const std::size_t sent = (before + part.begin + i) / width;
    if (--step.missing[sent] == 0) back.insert(step.chunks[sent]);
  }
  return back;
}

TEST(ReturningChunks, ComeBackOnceWithTheirLastPart) {
  std::mt19937 random(12);
  ReturningChunks returning;  // Used again for step after step.
  for (const std::size_t width : {1, 2, 7, 64, 1000}) {
    for (const std::size_t elements : {0, 1, 63, 64, 65, 997, 3000}) {
      for (const std::size_t most : {1, 10, 5000}) {
        Step step = MakeStep(elements, width, most, random);
        returning.Begin(width, step.chunks, step.buckets);
        EXPECT_FALSE(returning.any());
        std::set<std::size_t> awaited;
        std::size_t taken = 0;
        for (const Part& part : step.parts) {
          Feed* const feed = returning.feed(part.bucket);
          ASSERT_EQ(feed->available(), step.buckets[part.bucket].elements);
          feed->Finished(part.begin, part.count);
          awaited.merge(CountDown(step, part, width));
          ASSERT_EQ(returning.any(), !awaited.empty());
          for (const std::size_t chunk : returning.Take(random() % 3)) {
            ASSERT_EQ(awaited.erase(chunk), 1U) << chunk;
            ++taken;
          }
        }
        for (const std::size_t chunk : returning.Take(step.chunks.size())) {
          ASSERT_EQ(awaited.erase(chunk), 1U) << chunk;
          ++taken;
        }
        EXPECT_EQ(taken, step.chunks.size());
        EXPECT_FALSE(returning.any());
      }
    }
  }
}

TEST(ReturningChunks, OfAStepThatFailedAreForgotten) {
  ReturningChunks returning;
  std::vector<Bucket> buckets(1);
  buckets[0].elements = 9;
  const std::vector<std::size_t> chunks = {0, 4};
  returning.Begin(5, chunks, buckets);
  returning.feed(0)->Finished(0, 7);
  EXPECT_TRUE(returning.any());
  returning.Begin(5, chunks, buckets);
  EXPECT_FALSE(returning.any());
  returning.feed(0)->Finished(5, 4);
  EXPECT_EQ(returning.Take(9).front(), 4U);
}

}  // namespace
}  // namespace gradientflow::testing
