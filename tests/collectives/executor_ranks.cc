#include "tests/collectives/executor_ranks.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/placed_layout.h"
#include "kernels/kernels.h"
#include "transports/poller.h"
#include "transports/shm/shm_options.h"
#include "transports/wire.h"

namespace gradientflow::testing {
namespace {

// The arena of another rank, shared with only some of its members.
class HostArena final : public SharedArena {
 public:
  HostArena(SharedArena& all, std::vector<int> members)
      : all_(all), members_(std::move(members)) {}

  const std::vector<int>& members() const override { return members_; }
  Result<BufferView> Allocate(std::size_t bytes) override {
    return all_.Allocate(bytes);
  }
  void Free(BufferView view) override { all_.Free(view); }
  bool Contains(const void* data, std::size_t bytes) const override {
    return all_.Contains(data, bytes);
  }
  std::uint64_t OffsetOf(const void* data) const override {
    return all_.OffsetOf(data);
  }
  std::byte* At(int rank, std::uint64_t offset,
                std::size_t bytes) const override {
    return all_.At(rank, offset, bytes);
  }
  SyncSlot& slot(int rank, int index) const override {
    return all_.slot(rank, index);
  }
  void RingSleepers() override { all_.RingSleepers(); }
  void RingMissed() override { all_.RingMissed(); }

 private:
  SharedArena& all_;
  const std::vector<int> members_;
};

CallGroup GroupOf(const RanksSetup& setup, int rank) {
  CallGroup group;
  group.rank = rank;
  group.size = setup.size;
  const int per_host =
      setup.ranks_per_host > 0 ? setup.ranks_per_host : setup.size;
  for (int r = 0; r < setup.size; ++r) {
    group.topology.host.push_back(r / per_host);
  }
  group.hosts_share = setup.memory && setup.size > 1;
  group.all_share = group.hosts_share && per_host >= setup.size;
  group.hosts_place = setup.places && group.hosts_share && !group.all_share;
  group.all_place = setup.places && setup.size > 1 && !group.hosts_share;
  group.same_dtypes = setup.same_dtypes;
  return group;
}

}  // namespace

std::string Describe(const RanksSetup& setup) {
  return StrCat(setup.size, " ranks by ", setup.memory ? "memory" : "messages",
                ", ", setup.ranks_per_host, " a host",
                setup.places ? StrCat(", places, seed ", setup.seed) : "");
}

RanksSetup PlacingRanks(int size, std::uint64_t seed) {
  RanksSetup setup;
  setup.size = size;
  setup.memory = false;
  setup.places = true;
  setup.seed = seed;
  return setup;
}

TestRank::TestRank(const RanksSetup& setup, int rank,
                   std::shared_ptr<InprocGroup> group,
                   std::shared_ptr<PlacesNetwork> network)
    : inproc_(std::move(group)),
      network_(std::move(network)),
      group_(GroupOf(setup, rank)) {
  Result<std::unique_ptr<Poller>> poller = Poller::Create();
  FabricOptions fabric_options;
  fabric_options.early_bytes = setup.early_bytes;
  fabric_ = std::make_unique<Fabric>(rank, setup.size, clock_,
                                     std::move(poller).value(), fabric_options);
  LinkEvents* events = fabric_.get();
  if (places() != nullptr) {
    link_events_ = std::make_unique<PlacedLinkEvents>(*fabric_, *places());
    events = link_events_.get();
  }
  auto links = inproc_->Connect(rank, &fabric_->poller(), events).value();
  if (places() != nullptr) links = WithPlaces(std::move(links), *places());
  fabric_->Connect(std::move(links));
  if (group_.hosts_share) {
    std::vector<int> members;
    for (int r = 0; r < setup.size; ++r) {
      if (group_.topology.host[r] == group_.topology.host[rank]) {
        members.push_back(r);
      }
    }
    arena_ = std::make_unique<HostArena>(inproc_->arena(rank), members);
  }
  ExecutorOptions options;
  options.segment_bytes = setup.segment_bytes;
  options.segments_in_flight = setup.segments_in_flight;
  executor_ = std::make_unique<Executor>(
      ExecutorArgs{fabric_.get(), arena_.get(), setup.kernels, &clock_, nullptr,
                   nullptr, places()},
      group_, TypicalCostModels(), options);
}

void TestRank::Drive(Collective* front, const std::function<bool()>& done) {
  while (!done()) {
    bool moved = front != nullptr && front->Poll();
    moved |= Poll();
    if (!moved) std::this_thread::yield();
  }
}

void TestRank::Depart() {
  fabric_->Leave(std::chrono::seconds(10));
  executor_.reset();
  fabric_.reset();
}

void OnRanks(const RanksSetup& setup,
             const std::function<void(TestRank&)>& body) {
  ShmOptions shm;
  shm.arena_bytes = std::size_t{256} << 20;
  shm.fifo_bytes = std::size_t{64} << 10;
  Result<std::shared_ptr<InprocGroup>> group =
      InprocGroup::Create(setup.size, shm);
  ASSERT_TRUE(group.ok()) << group.status().message();
  std::shared_ptr<PlacesNetwork> network;
  if (setup.places) {
    network = std::make_shared<PlacesNetwork>(
        setup.size,
        PlacedSlotBytes(setup.size, setup.segment_bytes,
                        setup.segments_in_flight),
        setup.seed);
  }
  std::barrier<> through(setup.size);
  std::vector<std::thread> threads;
  for (int r = 0; r < setup.size; ++r) {
    threads.emplace_back([&, r] {
      TestRank rank(setup, r, group.value(), network);
      body(rank);
      if (::testing::Test::HasFailure() && !rank.departed()) {
        // If a body gives up, no other rank may wait for it.
        rank.fabric().Fail(Status(StatusCode::kAborted, "the test has failed"));
        rank.Poll();
      }
      through.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (network == nullptr) return;
  EXPECT_EQ(network->error(), "") << Describe(setup);
}

void Ending::OnDone(void* self, std::uint64_t, std::uint32_t flags,
                    const Status& status) {
  auto& ending = *static_cast<Ending*>(self);
  ++ending.times;
  ending.nonfinite = (flags & kFlagNonfinite) != 0;
  ending.status = status;
}

std::vector<const CollectiveAlgorithm*> AlgorithmsFor(const RanksSetup& setup) {
  std::vector<const CollectiveAlgorithm*> algorithms = {nullptr};
  const bool all_share = setup.memory && setup.ranks_per_host == 0;
  for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
    if (RunnableAlgorithm(algorithm, setup.size, all_share,
                          setup.places && !setup.memory) == algorithm) {
      algorithms.push_back(algorithm);
    }
  }
  return algorithms;
}

std::vector<std::byte> Encode(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  kernels::CpuKernels().convert({values.data(), DType::kFloat32, bytes.data(),
                                 dtype, nullptr, values.size(), 1.0F, nullptr},
                                nullptr);
  return bytes;
}

std::vector<float> Decode(DType dtype, const std::byte* data,
                          std::size_t count) {
  std::vector<float> values(count);
  kernels::CpuKernels().convert({data, dtype, values.data(), DType::kFloat32,
                                 nullptr, count, 1.0F, nullptr},
                                nullptr);
  return values;
}

std::vector<float> Contribution(int rank, std::size_t count,
                                std::uint64_t seed) {
  // SplitMix64 (Steele, Lea and Flood, 2014): without a table, it is quick
  // under sanitizers too.
  std::uint64_t state = seed * 1000 + static_cast<std::uint64_t>(rank);
  std::vector<float> values(count);
  for (float& value : values) {
    state += 0x9E3779B97F4A7C15;
    std::uint64_t bits = (state ^ state >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    const float magnitude = 0.5F + static_cast<float>(bits >> 40) * 0x1p-24F;
    value = (bits & 1) != 0 ? magnitude : -magnitude;
  }
  return values;
}

std::vector<Exact> ExactSum(int size, std::size_t count, std::uint64_t seed,
                            double factor) {
  std::vector<Exact> exact(count);
  for (int r = 0; r < size; ++r) {
    const std::vector<float> values = Contribution(r, count, seed);
    for (std::size_t i = 0; i < count; ++i) {
      exact[i].value += factor * double{values[i]};
      exact[i].magnitude += std::fabs(factor * double{values[i]});
    }
  }
  return exact;
}

int Precision(DType dtype) {
  return dtype == DType::kFloat16 ? 11 : dtype == DType::kBFloat16 ? 8 : 24;
}

::testing::AssertionResult Near(const std::vector<float>& seen,
                                const std::vector<Exact>& exact, int precision,
                                double ulps) {
  const double least_unit = std::ldexp(1.0, -precision);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = std::fabs(double{seen[i]} - exact[i].value);
    // The unit itself takes longer than all else here.
    if (error <= ulps * least_unit * exact[i].magnitude) continue;
    const double unit =
        std::ldexp(1.0, std::ilogb(exact[i].magnitude) + 1 - precision);
    if (error <= ulps * unit) continue;
    return ::testing::AssertionFailure()
           << "element " << i << " is " << seen[i] << ", expected "
           << exact[i].value << " within " << ulps << " units of " << unit;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gradientflow::testing
