#include "gradientflow/communicator/pool_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "tests/transports/thread_places.h"
#include "transports/inproc/create.h"

// Who reaches the memory of a pool, and that it is given back to each of them.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kBytes = 10000;

class Pools : public ::testing::Test {
 protected:
  SharedArena& arena() { return group_->arena(0); }
  ThreadPlaces& places() { return network_.places(0); }

  const std::shared_ptr<InprocGroup> group_ =
      InprocGroup::Create(2, {std::size_t{1} << 20, 65536}).value();
  PlacesNetwork network_{2, 4096, 1};
};

TEST_F(Pools, AreReachedByTheHostAndByTheCard) {
  const std::byte* data = nullptr;
  {
    PoolMemory memory =
        PoolMemory::Allocate(&arena(), &places(), kBytes).value();
    const PoolMemory pool = std::move(memory);
    data = pool.view().data;
    EXPECT_TRUE(arena().Contains(data, kBytes));
    EXPECT_TRUE(places().Reaches(data, kBytes));
    EXPECT_TRUE(pool.unreached().ok());
  }
  EXPECT_FALSE(arena().Contains(data, kBytes));
  EXPECT_FALSE(places().Reaches(data, 1));
}

TEST_F(Pools, AreReachedByWhatThereIs) {
  const PoolMemory shared =
      PoolMemory::Allocate(&arena(), nullptr, kBytes).value();
  EXPECT_TRUE(arena().Contains(shared.view().data, kBytes));
  EXPECT_FALSE(places().Reaches(shared.view().data, 1));
  const PoolMemory placed =
      PoolMemory::Allocate(nullptr, &places(), kBytes).value();
  EXPECT_FALSE(arena().Contains(placed.view().data, 1));
  EXPECT_TRUE(places().Reaches(placed.view().data, kBytes));
  const PoolMemory own = PoolMemory::Allocate(nullptr, nullptr, kBytes).value();
  EXPECT_NE(own.view().data, nullptr);
}

}  // namespace
}  // namespace gradientflow::testing
