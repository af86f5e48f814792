#include "gradientflow/collectives/staging_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>

#include "tests/device/fake_device.h"
#include "transports/inproc/create.h"

namespace gradientflow::testing {
namespace {

struct Block {
  std::byte* data;
  std::size_t bytes;
  int value;
};

void Fill(const Block& block) {
  std::memset(block.data, block.value, block.bytes);
}
bool Intact(const Block& block) {
  for (std::size_t i = 0; i < block.bytes; ++i) {
    if (block.data[i] != static_cast<std::byte>(block.value)) return false;
  }
  return true;
}

TEST(StagingMemory, GivesBlocksThatDoNotOverlap) {
  FakeDevice device;
  StagingMemory memory(device, nullptr, 40000);
  std::mt19937_64 random(3);
  std::deque<Block> blocks;
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::size_t bytes = 1 + random() % 12000;
    Result<std::byte*> block = memory.Take(bytes);
    ASSERT_TRUE(block.ok());
    if (block.value() != nullptr) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.value()) % 256, 0);
      blocks.push_back({block.value(), bytes, i % 251});
      Fill(blocks.back());
    } else {
      ++refused;
      ASSERT_FALSE(blocks.empty());
    }
    while (!blocks.empty() && (block.value() == nullptr || random() % 3 == 0)) {
      // Mostly the oldest, but calls may end in another order.
      const std::size_t which =
          random() % 4 == 0 ? random() % blocks.size() : 0;
      const Block over = blocks[which];
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
      ASSERT_TRUE(Intact(over));
      memory.Give(over.data);
      if (block.value() == nullptr) break;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_EQ(device.count(FakeCall::kAllocatePinned), 1);
  EXPECT_EQ(memory.capacity_bytes(), 40000);
  for (const Block& block : blocks) memory.Give(block.data);
}

TEST(StagingMemory, GrowsOnlyForOneThatIsLarger) {
  FakeDevice device;
  StagingMemory memory(device, nullptr, 1000);
  EXPECT_EQ(memory.capacity_bytes(), 0) << "nothing before it is needed";
  std::byte* first = memory.Take(700).value();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(memory.Take(5000).value(), nullptr) << "the first is in use";
  memory.Give(first);
  std::byte* large = memory.Take(5000).value();
  ASSERT_NE(large, nullptr);
  EXPECT_GE(memory.capacity_bytes(), 5000);
  memory.Give(large);
  std::byte* again = memory.Take(4000).value();
  ASSERT_NE(again, nullptr);
  memory.Give(again);
  EXPECT_EQ(device.count(FakeCall::kAllocatePinned), 2);
}

TEST(StagingMemory, LiesInTheArenaPageLocked) {
  ShmOptions options;
  options.arena_bytes = std::size_t{1} << 20;
  options.fifo_bytes = 4096;
  const std::shared_ptr<InprocGroup> group =
      InprocGroup::Create(1, options).value();
  SharedArena& arena = group->arena(0);
  FakeDevice device;
  {
    StagingMemory memory(device, &arena, 10000);
    std::byte* block = memory.Take(300).value();
    EXPECT_TRUE(arena.Contains(block, 300));
    EXPECT_EQ(device.count(FakeCall::kRegisterHost), 1);
    EXPECT_EQ(device.count(FakeCall::kAllocatePinned), 0);
    memory.Give(block);
    const Result<std::byte*> too_large = memory.Take(std::size_t{2} << 20);
    EXPECT_EQ(too_large.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(too_large.status().message().find("arena_bytes"),
              std::string::npos);
    // Smaller memory still serves calls.
    std::byte* small = memory.Take(300).value();
    ASSERT_NE(small, nullptr);
    memory.Give(small);
    device.FailCall(FakeCall::kRegisterHost, 0,
                    Status(StatusCode::kResourceExhausted, "locked enough"));
    EXPECT_EQ(memory.Take(20000).status().message(), "locked enough");
  }
  // Everything was given back to the arena.
  Result<BufferView> all = arena.Allocate(std::size_t{900} << 10);
  EXPECT_TRUE(all.ok()) << all.status().message();
}

}  // namespace
}  // namespace gradientflow::testing
