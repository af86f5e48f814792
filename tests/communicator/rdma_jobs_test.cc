#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"
#include "tests/rdma/fake_verbs.h"
#include "transports/rdma/verbs_api.h"

// Whole jobs over RDMA, as threads: thousands of collectives of all kinds, in
// which each sum is right and no card ever has to send anything again.
namespace gradientflow::testing {
namespace {

// Ranks with a card each, of which `ranks_per_host` share memory.
class RdmaJobs : public ::testing::Test {
 protected:
  ~RdmaJobs() override {
    ReplaceVerbs(nullptr);
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  void Run(int ranks, int ranks_per_host, const std::string& fabric,
           const std::function<void(Communicator&)>& body) {
    FakeHost host;
    for (int r = 0; r < ranks; ++r) {
      for (int i = 0; i < cards_; ++i) {
        FakeDevice card = UsualHost(r + 10 * i).devices.front();
        card.name = StrCat("fake", r, "card", i);
        host.devices.push_back(card);
      }
    }
    fake_.AddHost(host);
    ReplaceVerbs(fake_.api(0));
    folder_ = ::testing::TempDir() + "/gf_rdma_jobs_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    std::barrier<> through(ranks);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        Options options;
        options.rank = r;
        options.size = ranks;
        options.rendezvous = "file://" + folder_;
        options.host_id = StrCat("host", r / ranks_per_host);
        options.fabric = fabric;
        options.socket_ifname = "lo";
        options.transport_settings["rdma_devices"] = StrCat("fake", r, "card");
        options.transport_settings["rdma_ports"] = std::to_string(cards_);
        options.algorithm = algorithm_;
        options.arena_bytes = std::size_t{256} << 20;
        options.segment_bytes = std::size_t{8} << 10;
        options.log_level = LogLevel::kError;
        options.timeout_seconds = 60;
        const auto comm = Communicator::Open(options);
        EXPECT_TRUE(comm.ok()) << comm.status().ToString();
        through.arrive_and_wait();
        if (comm.ok()) body(*comm.value());
        through.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  FakeVerbs fake_{0};
  int cards_ = 1;  // Of each rank.
  std::string algorithm_ = "auto";

 private:
  std::string folder_;
};

// What rank `rank` brings as element `i` of a call.
std::int32_t Value(std::uint64_t call, int rank, std::size_t i) {
  return static_cast<std::int32_t>(
             (call * 13 + static_cast<std::uint64_t>(rank) * 31 + i * 7) %
             1001) -
         500;
}

// One call of a random kind and size, the same on all ranks, with what this
// rank has to have afterwards.
class RandomCall {
 public:
  RandomCall(Communicator& comm, std::uint64_t number)
      : comm_(comm), number_(number) {
    std::mt19937_64 random(number);
    call_.dtype = call_.wire = DType::kInt32;
    call_.kind = static_cast<CollectiveKind>(random() % kCollectiveKinds);
    call_.root = static_cast<int>(random() % static_cast<unsigned>(Size()));
    constexpr std::size_t kMost[] = {1, 16, 300, 3000, 8000};
    const std::size_t most = kMost[random() % std::size(kMost)];
    count_ = random() % most + 1;
    for (int r = 0; r < Size(); ++r) parts_.push_back(random() % most);
    Fill();
    call_.input = input_.data();
    call_.output = output_.data();
  }

  Result<std::uint64_t> Start() { return comm_.Start(call_); }
  void Check() const {
    EXPECT_EQ(output_, expected_)
        << Name(call_.kind) << " " << number_ << " of " << count_;
  }

 private:
  int Size() const { return comm_.size(); }
  std::int32_t Sum(std::size_t i) const {
    std::int32_t sum = 0;
    for (int r = 0; r < Size(); ++r) sum += Value(number_, r, i);
    return sum;
  }
  // Appends [begin, begin + count) of what `rank` brings.
  void Append(int rank, std::size_t begin, std::size_t count,
              std::vector<std::int32_t>* to) const {
    for (std::size_t i = begin; i < begin + count; ++i) {
      to->push_back(Value(number_, rank, i));
    }
  }

  void Fill() {
    const bool root = comm_.rank() == call_.root;
    const auto me = static_cast<std::size_t>(comm_.rank());
    const auto ranks = static_cast<std::size_t>(Size());
    call_.count = count_;
    switch (call_.kind) {
      case CollectiveKind::kAllreduce:
        Append(comm_.rank(), 0, count_, &output_);
        for (std::size_t i = 0; i < count_; ++i) expected_.push_back(Sum(i));
        break;
      case CollectiveKind::kBroadcast:
        Append(comm_.rank(), 0, count_, &output_);
        Append(call_.root, 0, count_, &expected_);
        break;
      case CollectiveKind::kReduce:
        Append(comm_.rank(), 0, count_, &input_);
        for (std::size_t i = 0; root && i < count_; ++i) {
          expected_.push_back(Sum(i));
        }
        break;
      case CollectiveKind::kAllgather:
        Append(comm_.rank(), 0, count_, &input_);
        for (int r = 0; r < Size(); ++r) Append(r, 0, count_, &expected_);
        break;
      case CollectiveKind::kReduceScatter:
        Append(comm_.rank(), 0, count_ * ranks, &input_);
        for (std::size_t i = 0; i < count_; ++i) {
          expected_.push_back(Sum(me * count_ + i));
        }
        break;
      case CollectiveKind::kAllToAll:
        call_.equal_counts = true;
        call_.send_counts = call_.recv_counts =
            std::vector<std::size_t>(ranks, count_);
        Append(comm_.rank(), 0, count_ * ranks, &input_);
        for (int r = 0; r < Size(); ++r) {
          Append(r, me * count_, count_, &expected_);
        }
        break;
      case CollectiveKind::kGather:
        call_.recv_counts = parts_;
        Append(comm_.rank(), 0, parts_[me], &input_);
        for (int r = 0; root && r < Size(); ++r) {
          Append(r, 0, parts_[static_cast<std::size_t>(r)], &expected_);
        }
        break;
      case CollectiveKind::kScatter:
        call_.send_counts = parts_;
        if (root) {
          Append(call_.root, 0,
                 std::accumulate(parts_.begin(), parts_.end(), std::size_t{0}),
                 &input_);
        }
        Append(call_.root,
               std::accumulate(parts_.begin(),
                               parts_.begin() + static_cast<std::ptrdiff_t>(me),
                               std::size_t{0}),
               parts_[me], &expected_);
        break;
      case CollectiveKind::kBarrier:
        break;
    }
    output_.resize(expected_.size(), -1);
    // An empty vector has no address, which only a call without elements may
    // have.
    input_.reserve(1);
    output_.reserve(1);
  }

  Communicator& comm_;
  const std::uint64_t number_;
  std::size_t count_ = 0;
  std::vector<std::size_t> parts_;
  CollectiveCall call_;
  std::vector<std::int32_t> input_;
  std::vector<std::int32_t> output_;
  std::vector<std::int32_t> expected_;
};

// Up to `together` of them are in flight.
void RunRandomCalls(Communicator& comm, std::uint64_t calls,
                    std::uint64_t together) {
  for (std::uint64_t first = 0; first < calls; first += together) {
    std::vector<std::unique_ptr<RandomCall>> started;
    std::vector<std::uint64_t> tickets;
    for (std::uint64_t i = first; i < first + together; ++i) {
      started.push_back(std::make_unique<RandomCall>(comm, i));
      const auto ticket = started.back()->Start();
      ASSERT_TRUE(ticket.ok()) << ticket.status().ToString();
      tickets.push_back(ticket.value());
    }
    for (std::size_t i = 0; i < started.size(); ++i) {
      const Status status = comm.Wait(tickets[i]);
      ASSERT_TRUE(status.ok()) << status.ToString();
      started[i]->Check();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST_F(RdmaJobs, TenThousandCollectivesFindEachReceiverReady) {
  Run(4, 1, "rdma",
      [](Communicator& comm) { RunRandomCalls(comm, 10'000, 8); });
  const FakeVerbsStats stats = fake_.stats(0);
  EXPECT_EQ(stats.rnr, 0U) << "receivers that were not ready";
  EXPECT_EQ(stats.errors, 0U) << "retries exceeded, or any other error";
  EXPECT_EQ(stats.retries, 0U);
  EXPECT_EQ(stats.refused_writes, 0U);
  EXPECT_GT(stats.delivered, 100'000U);
}

// Each rank has two cards, of which all messages are divided, placed ones as
// well.
TEST_F(RdmaJobs, RanksWithSeveralCardsUseAll) {
  cards_ = 2;
  algorithm_ = "gdraa";
  Run(3, 1, "rdma", [](Communicator& comm) {
    RunRandomCalls(comm, 1000, 8);
    const auto pool = comm.AllocateShared(30'000 * sizeof(float));
    ASSERT_TRUE(pool.ok()) << pool.status().ToString();
    auto* const floats = reinterpret_cast<float*>(pool.value().data);
    for (int i = 0; i < 200; ++i) {
      std::fill_n(floats, 30'000, static_cast<float>(comm.rank() + i));
      CollectiveCall sum;
      sum.output = floats;
      sum.count = 30'000;
      const Status status = comm.Run(sum);
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(
          std::count(floats, floats + 30'000, static_cast<float>(3 + 3 * i)),
          30'000);
    }
    comm.FreeShared(pool.value());
  });
  const FakeVerbsStats stats = fake_.stats(0);
  EXPECT_EQ(stats.rnr + stats.errors + stats.refused_writes, 0U);
  for (int r = 0; r < 3; ++r) {
    const auto of = [&](int card) {
      return static_cast<double>(
          fake_.BytesOf(StrCat("fake", r, "card", card)));
    };
    // Messages are divided by what the cards have carried, so a busy machine
    // changes the shares.
    EXPECT_GT(of(0), 0.05 * (of(0) + of(1)));
    EXPECT_GT(of(1), 0.05 * (of(0) + of(1)));
  }
}

// Three hosts of two ranks: shared memory inside, RDMA between them.
TEST_F(RdmaJobs, HostsWithSeveralRanksWriteBetweenThem) {
  Run(6, 2, "auto", [](Communicator& comm) {
    RunRandomCalls(comm, 2000, 4);
    // Buffers that both the other rank of the host and the card reach.
    const auto shared = comm.AllocateShared(4096 * sizeof(float));
    ASSERT_TRUE(shared.ok()) << shared.status().ToString();
    auto* const floats = reinterpret_cast<float*>(shared.value().data);
    for (int i = 0; i < 200; ++i) {
      std::fill_n(floats, 4096, static_cast<float>(comm.rank() + i));
      CollectiveCall sum;
      sum.output = floats;
      sum.count = 4096;
      const Status status = comm.Run(sum);
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(
          std::count(floats, floats + 4096, static_cast<float>(15 + 6 * i)),
          4096);
    }
    comm.FreeShared(shared.value());
  });
  const FakeVerbsStats stats = fake_.stats(0);
  EXPECT_EQ(stats.rnr, 0U);
  EXPECT_EQ(stats.errors, 0U);
  EXPECT_EQ(stats.refused_writes, 0U);
  EXPECT_GT(stats.delivered, 1000U) << "the hosts are linked by RDMA";
}

}  // namespace
}  // namespace gradientflow::testing
