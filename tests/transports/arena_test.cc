#include "transports/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/fd.h"
#include "transports/inproc/create.h"
#include "transports/shm/create.h"
#include "transports/shm/mapping.h"
#include "transports/shm/shm_arena.h"
#include "transports/shm/window_heap.h"

namespace gradientflow {
namespace {

constexpr std::size_t kArena = std::size_t{8} << 20;

bool AllZero(BufferView view) {
  return std::all_of(view.data, view.data + view.bytes,
                     [](std::byte b) { return b == std::byte{0}; });
}

TEST(WindowHeap, NeverOverlapsAndMergesWhatIsFreed) {
  constexpr std::uint64_t kBegin = 4096;
  constexpr std::uint64_t kEnd = std::uint64_t{16} << 20;
  std::mt19937 random(5);
  WindowHeap heap(kBegin, kEnd);
  std::map<std::uint64_t, std::uint64_t> windows;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 || windows.empty()) {
      const std::size_t bytes = random() % (random() % 4 ? 20000 : 3000000);
      const auto offset = heap.Allocate(bytes);
      if (!offset) continue;
      ASSERT_EQ(*offset % 4096, 0U);
      ASSERT_GE(*offset, kBegin);
      ASSERT_LE(*offset + bytes, kEnd);
      const auto next = windows.lower_bound(*offset);
      if (next != windows.end()) {
        ASSERT_LE(*offset + bytes, next->first);
      }
      if (next != windows.begin()) {
        const auto before = std::prev(next);
        ASSERT_GE(*offset, before->first + before->second);
      }
      windows[*offset] = std::max<std::size_t>(bytes, 1);
      ASSERT_TRUE(heap.Contains(*offset, bytes));
    } else {
      auto it = windows.begin();
      std::advance(it, random() % windows.size());
      ASSERT_TRUE(heap.Free(it->first).has_value());
      ASSERT_FALSE(heap.Contains(it->first, 1));
      windows.erase(it);
    }
  }
  for (const auto& [offset, bytes] : windows) heap.Free(offset);
  EXPECT_EQ(heap.free_bytes(), kEnd - kBegin);
  EXPECT_EQ(heap.largest_free_bytes(), kEnd - kBegin);
}

TEST(WindowHeap, RefusesWhatItDidNotGive) {
  WindowHeap heap(0, 1 << 20);
  const auto offset = heap.Allocate(100);
  ASSERT_TRUE(offset.has_value());
  EXPECT_FALSE(heap.Free(*offset + 4096).has_value());
  EXPECT_FALSE(heap.Allocate(std::numeric_limits<std::size_t>::max()));
  EXPECT_EQ(heap.Free(*offset), std::size_t{4096});
  EXPECT_FALSE(heap.Free(*offset).has_value());
}

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto group = InprocGroup::Create(2, {kArena, 4096});
    ASSERT_TRUE(group.ok()) << group.status().ToString();
    group_ = std::move(group).value();
  }
  SharedArena& arena(int rank) { return group_->arena(rank); }

  std::shared_ptr<InprocGroup> group_;
};

TEST_F(ArenaTest, GivesAlignedZeroedMemoryAlsoWhenUsedBefore) {
  for (const std::size_t bytes : {1U, 4095U, 4097U, 3000001U}) {
    for (int round = 0; round < 3; ++round) {
      const auto view = arena(0).Allocate(bytes);
      ASSERT_TRUE(view.ok()) << view.status().ToString();
      EXPECT_EQ(view.value().bytes, bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.value().data) % 4096, 0U);
      EXPECT_TRUE(AllZero(view.value())) << bytes << " round " << round;
      std::memset(view.value().data, 0xff, bytes);
      arena(0).Free(view.value());
    }
  }
}

TEST_F(ArenaTest, FreeTouchesNoOtherWindow) {
  const BufferView a = arena(0).Allocate(5000).value();
  const BufferView b = arena(0).Allocate(5000).value();
  const BufferView c = arena(0).Allocate(5000).value();
  std::memset(a.data, 1, a.bytes);
  std::memset(b.data, 2, b.bytes);
  std::memset(c.data, 3, c.bytes);
  arena(0).Free(b);
  EXPECT_EQ(a.data[4999], std::byte{1});
  EXPECT_EQ(c.data[0], std::byte{3});
  EXPECT_FALSE(arena(0).Contains(b.data, 1));
  EXPECT_TRUE(arena(0).Contains(c.data, c.bytes));
}

TEST_F(ArenaTest, ExhaustionNamesTheSettingAndIsNotForEver) {
  const auto too_much = arena(0).Allocate(kArena);
  ASSERT_FALSE(too_much.ok());
  EXPECT_EQ(too_much.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(too_much.status().message().find("arena_bytes"), std::string::npos);
  std::vector<BufferView> views;
  for (;;) {
    auto view = arena(0).Allocate(std::size_t{1} << 20);
    if (!view.ok()) break;
    views.push_back(view.value());
  }
  EXPECT_GE(views.size(), 6U);
  arena(0).Free(views.back());
  EXPECT_TRUE(arena(0).Allocate(std::size_t{1} << 20).ok());
}

TEST_F(ArenaTest, KnowsWhatItGave) {
  const BufferView view = arena(0).Allocate(8192).value();
  EXPECT_TRUE(arena(0).Contains(view.data, 8192));
  EXPECT_TRUE(arena(0).Contains(view.data + 4096, 4096));
  EXPECT_FALSE(arena(0).Contains(view.data, 8193 + kArena));
  EXPECT_FALSE(arena(0).Contains(view.data - 1, 2));
  int elsewhere = 0;
  EXPECT_FALSE(arena(0).Contains(&elsewhere, sizeof(elsewhere)));
  EXPECT_FALSE(arena(1).Contains(view.data, 1));
}

TEST_F(ArenaTest, ShowsMembersMemoryWithinBoundsOnly) {
  const BufferView view = arena(1).Allocate(100).value();
  std::memset(view.data, 9, view.bytes);
  const std::uint64_t offset = arena(1).OffsetOf(view.data);
  const std::byte* seen = arena(0).At(1, offset, 100);
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen[99], std::byte{9});
  EXPECT_NE(arena(0).At(1, kArena - 1, 1), nullptr);
  EXPECT_NE(arena(0).At(1, kArena, 0), nullptr);
  EXPECT_EQ(arena(0).At(1, kArena, 1), nullptr);
  EXPECT_EQ(arena(0).At(1, kArena - 1, 2), nullptr);
  EXPECT_EQ(arena(0).At(1, 0, 1), nullptr) << "control words";
  EXPECT_EQ(arena(0).At(1, ~std::uint64_t{0}, 2), nullptr);
  EXPECT_EQ(arena(0).At(1, offset, ~std::size_t{0}), nullptr);
  EXPECT_EQ(arena(0).At(2, offset, 1), nullptr) << "no member";
  EXPECT_EQ(arena(0).At(-1, offset, 1), nullptr);
}

TEST_F(ArenaTest, SlotsAreTheOwnersOnEveryRank) {
  EXPECT_EQ(arena(0).members(), (std::vector<int>{0, 1}));
  for (const int index : {0, 1, kSyncSlots - 1}) {
    arena(1).slot(1, index).offset = 77U + index;
    arena(1).slot(1, index).arrived.store(5, std::memory_order_release);
    EXPECT_EQ(arena(0).slot(1, index).arrived.load(), 5U);
    EXPECT_EQ(arena(0).slot(1, index).offset, 77U + index);
    EXPECT_EQ(arena(0).slot(0, index).arrived.load(), 0U);
  }
}

TEST(ShmArena, IsUsableBeforeAnyPeerIsThere) {
  auto host = kShmTransport.open({kArena, 4096});
  ASSERT_TRUE(host.ok()) << host.status().ToString();
  const auto view = host.value()->arena()->Allocate(1000);
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(AllZero(view.value()));
}

TEST(ShmArena, RefusesImpossibleSizes) {
  const auto small = kShmTransport.open({4096, 4096});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(kShmTransport.open({~std::size_t{0}, 4096}).ok());
}

// An address space of the default size costs nothing until it is touched.
TEST(ShmArena, ReservesFarMoreThanItUses) {
  auto arena = ShmArena::Create(std::size_t{8} << 30);
  ASSERT_TRUE(arena.ok()) << arena.status().ToString();
  const auto view = arena.value()->Allocate(std::size_t{7} << 30);
  ASSERT_TRUE(view.ok());
  view.value().data[view.value().bytes - 1] = std::byte{1};
}

Fd Memfd(std::size_t bytes, int seals) {
  Fd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(PeersMemory, MustBeAMemfdThatCannotShrink) {
  EXPECT_TRUE(Mapping::FromPeer(Memfd(8192, F_SEAL_SHRINK), 8192).ok());
  const auto code = [](const Fd& fd, std::uint64_t bytes) {
    return Mapping::FromPeer(fd, bytes).status().code();
  };
  EXPECT_EQ(code(Memfd(8192, F_SEAL_GROW), 8192), StatusCode::kDataLoss);
  EXPECT_EQ(code(Memfd(8192, F_SEAL_SHRINK), 12288), StatusCode::kDataLoss);
  EXPECT_EQ(code(Memfd(8192, F_SEAL_SHRINK), 0), StatusCode::kDataLoss);
  EXPECT_EQ(code(Memfd(8192, F_SEAL_SHRINK), ~std::uint64_t{4095}),
            StatusCode::kDataLoss);
  EXPECT_EQ(code(Fd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 8192),
            StatusCode::kDataLoss);
  EXPECT_EQ(code(Fd(), 8192), StatusCode::kDataLoss);
}

TEST(PeersMemory, MustBeAnArenaOfThisVersion) {
  auto mine = std::move(ShmArena::Create(kArena)).value();
  auto peers = std::move(ShmArena::Create(kArena)).value();
  mine->SetSelf(0);
  auto* const control =
      reinterpret_cast<ArenaControl*>(peers->mapping()->data());
  control->version += 1;
  EXPECT_EQ(mine->AddMember(1, peers->mapping()).code(), StatusCode::kDataLoss);
  control->version -= 1;
  control->arena_bytes *= 2;
  EXPECT_EQ(mine->AddMember(1, peers->mapping()).code(), StatusCode::kDataLoss);
  control->arena_bytes /= 2;
  EXPECT_TRUE(mine->AddMember(1, peers->mapping()).ok());
}

TEST(PeersFifo, MustLieInsideItsArena) {
  auto mine = std::move(ShmArena::Create(kArena)).value();
  mine->SetSelf(0);
  const BufferView fifo = mine->AllocateFifo(4096).value();
  const std::uint64_t offset = mine->OffsetOf(fifo.data);
  EXPECT_TRUE(mine->FifoAt(0, offset, 4096).ok());
  EXPECT_FALSE(mine->FifoAt(0, offset + 8, 4096).ok());
  EXPECT_FALSE(mine->FifoAt(0, offset, 4097).ok());
  EXPECT_FALSE(mine->FifoAt(0, offset, 2048).ok());
  EXPECT_FALSE(mine->FifoAt(0, 0, 4096).ok());
  EXPECT_FALSE(mine->FifoAt(0, kArena - 4096, 4096).ok());
  EXPECT_FALSE(mine->FifoAt(0, offset, std::uint64_t{1} << 40).ok());
  EXPECT_FALSE(mine->FifoAt(1, offset, 4096).ok());
}

}  // namespace
}  // namespace gradientflow
