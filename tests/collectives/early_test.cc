#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/table.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/late_rank.h"

// Collectives whose messages come before their receives.
namespace gradientflow::testing {
namespace {

using Bytes = std::vector<std::byte>;
using Counts = std::vector<std::size_t>;
using Random = std::mt19937_64;

constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllreduce,     CollectiveKind::kBroadcast,
    CollectiveKind::kReduce,        CollectiveKind::kAllgather,
    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,
    CollectiveKind::kGather,        CollectiveKind::kScatter,
    CollectiveKind::kBarrier};

// Small whole numbers, of which every sum is exact.
Bytes RandomFloats(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  Bytes bytes(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(random() % 1000);
    std::memcpy(&bytes[i * sizeof(float)], &value, sizeof(value));
  }
  return bytes;
}

// A call with its buffers, equal for equal arguments.
struct MadeCall {
  MadeCall(CollectiveKind kind, const CollectiveAlgorithm* algorithm,
           const CallGroup& group, std::size_t count, std::uint64_t seed) {
    call.kind = kind;
    call.algorithm = algorithm;
    call.count = count;
    call.root = static_cast<int>(seed % static_cast<std::uint64_t>(group.size));
    const auto size = static_cast<std::size_t>(group.size);
    call.equal_counts = kind == CollectiveKind::kAllToAll;
    if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kScatter) {
      call.send_counts = Counts(size, count);
    }
    if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kGather) {
      call.recv_counts = Counts(size, count);
    }
    const auto [reads, writes] = BuffersOf(call, group);
    const auto own = static_cast<std::uint64_t>(group.rank);
    input = RandomFloats(reads + 1, seed * 100 + own);
    output = RandomFloats(writes + 1, seed * 100 + own + 50);
    call.input = input.data();
    call.output = output.data();
  }
  CollectiveCall call;
  Bytes input;
  Bytes output;
  Ending ending;
};

// Runs calls of every kind, size and algorithm, some of them at the same time,
// and returns what each rank has got.
std::vector<Bytes> RunAll(int size, std::size_t early_bytes) {
  RanksSetup setup;
  setup.size = size;
  setup.memory = false;
  setup.early_bytes = early_bytes;
  setup.places = true;
  std::vector<Bytes> results(static_cast<std::size_t>(size));
  OnRanks(setup, [&](TestRank& rank) {
    Random late(static_cast<std::uint64_t>(rank.rank()));
    std::uint64_t seed = 0;
    for (const CollectiveKind kind : kKinds) {
      for (const CollectiveAlgorithm* algorithm : AlgorithmsOf(kind)) {
        if (RunnableAlgorithm(algorithm, size, false, true) != algorithm) {
          continue;
        }
        std::vector<std::unique_ptr<MadeCall>> made;
        for (const std::size_t count : {0UL, 1UL, 997UL, 10'007UL}) {
          made.push_back(std::make_unique<MadeCall>(
              kind, algorithm, rank.group(), count, ++seed));
          for (auto i = late() % 50; i > 0; --i) std::this_thread::yield();
          MadeCall& last = *made.back();
          rank.executor().Start(last.call, last.ending.done());
        }
        for (const auto& call : made) {
          rank.Drive([&] { return call->ending.over(); });
          ASSERT_TRUE(call->ending.status.ok())
              << call->ending.status.ToString();
          Bytes& all = results[static_cast<std::size_t>(rank.rank())];
          all.insert(all.end(), call->output.begin(), call->output.end());
        }
      }
    }
  });
  return results;
}

// No algorithm depends on a send that ends before its receive is posted.
TEST(EarlyMessages, AnnouncingAllOfThemStopsNoCollective) {
  for (const int size : {2, 3, 5, 7, 8}) {
    EXPECT_TRUE(RunAll(size, 0) == RunAll(size, std::size_t{1} << 30)) << size;
  }
}

TEST(EarlyMessages, OfAnAllToAllWithALateRankFitInTheBudget) {
  constexpr std::size_t kBudget = 200'000;
  for (const int size : {2, 3, 5, 8}) {
    RanksSetup setup;
    setup.size = size;
    setup.memory = false;
    setup.early_bytes = kBudget;
    LateRank late(size / 2, size);
    // Bytes from rank a to rank b; some more than the budget, some none.
    const auto bytes = [&](int a, int b) {
      Random random(static_cast<std::uint64_t>(a * 100 + b));
      const std::uint64_t most = std::uint64_t{1} << random() % 22;
      const bool large = a == 0 && b == size / 2;
      return large ? 2 * kBudget : static_cast<std::size_t>(random() % most);
    };
    const auto value = [](int a, int b, std::size_t i) {
      return static_cast<std::byte>(static_cast<std::size_t>(a * 7 + b) + i);
    };
    OnRanks(setup, [&](TestRank& rank) {
      const int own = rank.rank();
      CollectiveCall call;
      call.kind = CollectiveKind::kAllToAll;
      call.dtype = call.wire = DType::kInt8;
      Bytes input;
      for (int r = 0; r < size; ++r) {
        call.send_counts.push_back(bytes(own, r));
        call.recv_counts.push_back(bytes(r, own));
        for (std::size_t i = 0; i < call.send_counts.back(); ++i) {
          input.push_back(value(own, r, i));
        }
      }
      Bytes output(std::accumulate(call.recv_counts.begin(),
                                   call.recv_counts.end(), std::size_t{0}));
      call.input = input.data();
      call.output = output.data();
      Ending ending;
      if (own == size / 2) late.Await(&rank);
      EXPECT_LE(HeldAt(rank), kBudget);
      if (own == size / 2) {
        EXPECT_GT(rank.fabric().waiting_bytes(0), kBudget) << "has it come?";
      }
      rank.executor().Start(call, ending.done());
      if (own != size / 2) late.Await(&rank);
      rank.Drive([&] { return ending.over(); });
      ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
      std::size_t at = 0;
      for (int r = 0; r < size; ++r) {
        bool equal = true;
        const std::size_t from_r = bytes(r, own);
        for (std::size_t i = 0; i < from_r; ++i) {
          equal &= output[at++] == value(r, own, i);
        }
        ASSERT_TRUE(equal) << r << " to " << own;
      }
    });
  }
}

}  // namespace
}  // namespace gradientflow::testing
