#include "transports/held_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace gradientflow {
namespace {

TEST(HeldMemory, BlocksOfSegmentsAreUsedAgain) {
  HeldMemory memory;
  HeldMemory::Block block = memory.Take(200'000);
  std::byte* const first = block.get();
  memory.Give(std::move(block), 200'000);
  EXPECT_EQ(memory.kept_bytes(), 262'144U);
  // Memory of the same power of two, and no other.
  EXPECT_NE(memory.Take(131'072).get(), first);
  EXPECT_EQ(memory.Take(262'144).get(), first);
  EXPECT_EQ(memory.kept_bytes(), 0U);
}

TEST(HeldMemory, KeepsNeitherSmallNorHugeNorManyBlocks) {
  HeldMemory memory;
  for (const std::size_t bytes : {1UL, 16'384UL, 1'048'577UL, 50'000'000UL}) {
    memory.Give(memory.Take(bytes), bytes);
    EXPECT_EQ(memory.kept_bytes(), 0U) << bytes;
  }
  std::vector<HeldMemory::Block> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(memory.Take(1'048'576));
  for (HeldMemory::Block& block : blocks) {
    memory.Give(std::move(block), 1'048'576);
  }
  EXPECT_EQ(memory.kept_bytes(), HeldMemory::kMostKept);
}

TEST(HeldMemory, BlocksHoldWhatTheyWereAskedFor) {
  HeldMemory memory;
  std::mt19937 random(7);
  std::vector<std::pair<HeldMemory::Block, std::size_t>> held;
  for (int i = 0; i < 2000; ++i) {
    if (held.size() < 12 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % 1'200'000;
      held.emplace_back(memory.Take(bytes), bytes);
      // Writes to the last byte, for the address sanitizer.
      std::memset(held.back().first.get(), static_cast<int>(bytes % 251),
                  bytes);
    } else if (!held.empty()) {
      auto& [block, bytes] = held[random() % held.size()];
      for (const std::size_t at : {std::size_t{0}, bytes / 2, bytes - 1}) {
        ASSERT_EQ(block[at], static_cast<std::byte>(bytes % 251));
      }
      memory.Give(std::move(block), bytes);
      std::swap(held.back().first, block);
      std::swap(held.back().second, bytes);
      held.pop_back();
    }
  }
}

}  // namespace
}  // namespace gradientflow
