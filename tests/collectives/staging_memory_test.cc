#include "gradientflow/collectives/staging_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>

#include "gradientflow/collectives/image_memory.h"
#include "tests/device/fake_device.h"
#include "tests/transports/thread_places.h"
#include "transports/inproc/create.h"
#include "transports/remote_places.h"

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

// Places of a card that may reach no more memory.
class NoRoom final : public RemotePlaces {
 public:
  void SetSink(Sink* /*sink*/) override {}
  BufferView slots() const override { return {}; }
  RemotePlace SlotsOf(int /*peer*/) const override { return {}; }
  Result<BufferView> Allocate(std::size_t /*bytes*/) override {
    return Status(StatusCode::kResourceExhausted, "no room");
  }
  void Free(BufferView /*memory*/) override { ADD_FAILURE(); }
  Status Lend(BufferView /*memory*/) override {
    return Status(StatusCode::kResourceExhausted, "no room");
  }
  void Withdraw(BufferView /*memory*/) override { ADD_FAILURE(); }
  Result<std::string> Attach(const DeviceBuffer& /*buffer*/) override {
    return Status(StatusCode::kUnavailable, "no room");
  }
  void Detach(const std::byte* /*data*/) override { ADD_FAILURE(); }
  bool Reaches(const void*, std::size_t) const override { return false; }
  RemotePlace NameOf(const void* /*data*/) const override { return {}; }
  void Put(int, std::span<const ConstBufferView>, RemotePlace, std::uint32_t,
           Done) override {
    ADD_FAILURE();
  }
};

TEST(StagingMemory, GivesBlocksThatDoNotOverlap) {
  FakeDevice device;
  StagingMemory memory(device, nullptr, nullptr, 40000);
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
  StagingMemory memory(device, nullptr, nullptr, 1000);
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
    StagingMemory memory(device, &arena, nullptr, 10000);
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

TEST(StagingMemory, LiesPageLockedWhereTheNetworkCardReaches) {
  PlacesNetwork network(1, 4096, 1);
  ThreadPlaces& places = network.places(0);
  FakeDevice device;
  const std::byte* freed = nullptr;
  {
    StagingMemory memory(device, nullptr, &places, 10000);
    std::byte* block = memory.Take(300).value();
    EXPECT_TRUE(places.Reaches(block, 10000));
    EXPECT_TRUE(memory.unreached().ok());
    EXPECT_EQ(device.count(FakeCall::kRegisterHost), 1);
    EXPECT_EQ(device.count(FakeCall::kAllocatePinned), 0);
    memory.Give(block);
    std::byte* larger = memory.Take(30000).value();
    EXPECT_TRUE(places.Reaches(larger, 30000));
    memory.Give(larger);
    freed = larger;
  }
  EXPECT_FALSE(places.Reaches(freed, 1));
  EXPECT_EQ(network.error(), "");
}

// Calls go on without the card's reach, and who asks is told why.
TEST(StagingMemory, IsThereIfTheNetworkCardCannotReachIt) {
  FakeDevice device;
  {
    NoRoom places;
    StagingMemory memory(device, nullptr, &places, 10000);
    std::byte* block = memory.Take(300).value();
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(memory.unreached().message(), "no room");
    EXPECT_EQ(device.count(FakeCall::kAllocatePinned), 1);
    memory.Give(block);
  }
  PlacesNetwork network(1, 4096, 1);
  StagingMemory memory(device, nullptr, &network.places(0), 10000);
  device.FailCall(FakeCall::kRegisterHost, 0,
                  Status(StatusCode::kResourceExhausted, "locked enough"));
  std::byte* block = memory.Take(300).value();
  ASSERT_NE(block, nullptr);
  EXPECT_FALSE(network.places(0).Reaches(block, 1));
  EXPECT_EQ(memory.unreached().message(), "locked enough");
  EXPECT_EQ(device.count(FakeCall::kAllocatePinned), 2);
  memory.Give(block);
}

// A device that exports its memory and can wait for writes to it.
FakeOptions Reachable() {
  FakeOptions options;
  options.dma_buf = true;
  options.flush = [] { return Status(); };
  return options;
}

TEST(ImageMemory, IsReachedAsLongAsItIsThere) {
  PlacesNetwork network(1, 4096, 1);
  ThreadPlaces& places = network.places(0);
  FakeDevice device(Reachable());
  const std::byte* last = nullptr;
  {
    ImageMemory memory(device, &places, 10000);
    ASSERT_TRUE(memory.usable());
    EXPECT_EQ(device.count(FakeCall::kAllocate), 0)
        << "not before it is needed";
    std::byte* const first = memory.Take(6000).value();
    EXPECT_TRUE(device.Owns(first));
    EXPECT_TRUE(places.Reaches(first, 10000));
    EXPECT_EQ(memory.Take(6000).value(), nullptr) << "no room";
    EXPECT_EQ(memory.Take(30000).value(), nullptr) << "nor a larger one";
    memory.Give(first);
    std::byte* const larger = memory.Take(30000).value();
    ASSERT_NE(larger, nullptr);
    EXPECT_TRUE(places.Reaches(larger, 30000));
    memory.Give(larger);
    last = larger;
  }
  EXPECT_FALSE(places.Reaches(last, 1));
  EXPECT_EQ(device.count(FakeCall::kAllocate), 2);
  EXPECT_EQ(network.error(), "");
}

TEST(ImageMemory, ARefusalIsForGood) {
  PlacesNetwork network(1, 4096, 1);
  FakeDevice deaf;
  ImageMemory unflushed(deaf, &network.places(0), 10000);
  EXPECT_FALSE(unflushed.Take(100).ok());
  EXPECT_FALSE(unflushed.usable());
  EXPECT_NE(unflushed.refused().message().find("cannot wait for writes"),
            std::string::npos);
  EXPECT_FALSE(ImageMemory(deaf, nullptr, 10000).usable());

  FakeOptions small = Reachable();
  small.memory_bytes = 5000;
  FakeDevice device(small);
  ImageMemory full(device, &network.places(0), 10000);
  EXPECT_EQ(full.Take(100).status().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(full.usable());
}

}  // namespace
}  // namespace gradientflow::testing
