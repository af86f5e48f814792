#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/mailboxes.h"
#include "tests/collectives/executor_ranks.h"

// The collectives that read the memory of other ranks in place, with buffers in
// and outside of that memory. Every rank overwrites its input as soon as a call
// has ended, so a peer that reads late reads wrong numbers.
namespace gradientflow::testing {
namespace {

using enum CollectiveKind;
constexpr CollectiveKind kKinds[] = {kAllreduce, kBroadcast,     kReduce,
                                     kAllgather, kReduceScatter, kAllToAll,
                                     kGather,    kScatter};
// Smaller than the ranks; primes; the largest and the smallest that are not
// read from mailboxes (2048 elements), alone and as one of 8 blocks.
constexpr std::size_t kCounts[] = {1, 2, 97, 255, 257, 2048, 2049, 5003};

const CollectiveAlgorithm* OneSided(CollectiveKind kind) {
  return kind == kAllreduce ? &allreduce::kOneSync
                            : ParseAlgorithm(kind, "shared").value();
}

// Element i of rank r's contribution to a call: sums of these are exact.
float Value(std::uint64_t call, std::size_t rank, std::size_t i) {
  return static_cast<float>((call * 31 + rank * 17 + i * (i % 7 + 1)) % 1009);
}

// Memory of a rank, in its arena or not.
class Memory {
 public:
  Memory(SharedArena* arena, std::size_t count) : own_(count + 1) {
    if (arena != nullptr) {
      arena_ = arena;
      view_ = arena->Allocate((count + 1) * sizeof(float)).value();
    }
    std::fill_n(data(), count, -1.0F);
    data()[count] = kCanary;
    end_ = data() + count;
  }
  ~Memory() {
    EXPECT_EQ(*end_, kCanary);
    if (arena_ != nullptr) arena_->Free(view_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  float* data() {
    return arena_ == nullptr ? own_.data()
                             : reinterpret_cast<float*>(view_.data);
  }

 private:
  static constexpr float kCanary = 12345;
  std::vector<float> own_;
  SharedArena* arena_ = nullptr;
  BufferView view_;
  float* end_ = nullptr;
};

// One call of `count` elements, or of parts that differ by rank.
struct Case {
  CollectiveKind kind = kAllreduce;
  std::uint64_t number = 0;
  std::size_t count = 0;
  std::size_t size = 1;
  std::size_t root = 0;

  std::vector<std::size_t> Parts() const {
    std::vector<std::size_t> parts(size, count);
    if (kind != kGather && kind != kScatter) return parts;
    for (std::size_t r = 0; r < size; ++r) parts[r] = count * (r % 3) / 2;
    return parts;
  }
  float In(std::size_t rank, std::size_t i) const {
    return Value(number, rank, i);
  }
  float Sum(std::size_t i) const {
    float sum = 0;
    for (std::size_t r = 0; r < size; ++r) sum += In(r, i);
    return sum;
  }
  // The result on `rank`, from the definition of the collective.
  std::vector<float> Result(std::size_t rank) const {
    std::vector<float> result;
    const std::vector<std::size_t> parts = Parts();
    const auto add = [&](std::size_t from, std::size_t begin, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) {
        result.push_back(In(from, begin + i));
      }
    };
    switch (kind) {
      case kAllreduce:
      case kReduce:
        if (kind == kReduce && rank != root) break;
        for (std::size_t i = 0; i < count; ++i) result.push_back(Sum(i));
        break;
      case kReduceScatter:
        for (std::size_t i = 0; i < count; ++i) {
          result.push_back(Sum(rank * count + i));
        }
        break;
      case kBroadcast:
        add(root, 0, count);
        break;
      case kScatter:
        add(root, std::accumulate(parts.begin(), parts.begin() + rank, 0UL),
            parts[rank]);
        break;
      default:
        if (kind == kGather && rank != root) break;
        for (std::size_t r = 0; r < size; ++r) {
          add(r, kind == kAllToAll ? rank * count : 0, parts[r]);
        }
    }
    return result;
  }
  std::size_t InputCount(std::size_t rank) const {
    const std::vector<std::size_t> parts = Parts();
    const bool divides = kind == kReduceScatter || kind == kAllToAll ||
                         (kind == kScatter && rank == root);
    return divides ? std::accumulate(parts.begin(), parts.end(), 0UL)
                   : parts[rank];
  }
};

void RunCase(TestRank& rank, const Case& test, SharedArena* input_arena,
             SharedArena* output_arena) {
  const auto me = static_cast<std::size_t>(rank.rank());
  const std::vector<float> wanted = test.Result(me);
  const std::size_t given = test.InputCount(me);
  const bool in_place = test.kind == kAllreduce || test.kind == kBroadcast;
  Memory input(input_arena, given);
  Memory output(output_arena, std::max(wanted.size(), test.count));
  float* const from = in_place ? output.data() : input.data();
  for (std::size_t i = 0; i < given; ++i) from[i] = test.In(me, i);
  CollectiveCall call;
  call.kind = test.kind;
  call.input = input.data();
  call.output = output.data();
  call.count = test.count;
  call.root = static_cast<int>(test.root);
  call.algorithm = OneSided(test.kind);
  if (test.kind == kAllToAll || test.kind == kScatter) {
    call.send_counts = test.Parts();
  }
  if (test.kind == kAllToAll || test.kind == kGather) {
    call.recv_counts = test.Parts();
  }
  call.equal_counts = test.kind == kAllToAll;
  Ending ending;
  rank.executor().Start(call, ending.done());
  rank.Drive([&] { return ending.over(); });
  ASSERT_TRUE(ending.status.ok()) << ending.status.message();
  const std::vector<float> seen(output.data(), output.data() + wanted.size());
  std::fill_n(from, given, -2.0F);
  ASSERT_EQ(seen, wanted) << Name(test.kind) << " of " << test.count
                          << " among " << test.size << ", rank " << me;
}

TEST(OneSided, EveryCollectiveEqualsItsDefinition) {
  for (const int size : {1, 2, 3, 5, 7, 8}) {
    RanksSetup setup;
    setup.size = size;
    // Room for segments with mail and without it, also in one call.
    setup.segment_bytes = 12000;
    OnRanks(setup, [&](TestRank& rank) {
      Case test;
      test.size = static_cast<std::size_t>(size);
      for (const std::size_t count : kCounts) {
        for (test.kind = kAllreduce;;
             test.kind = CollectiveKind(int(test.kind) + 1)) {
          if (test.kind == kBarrier) break;
          test.count = count;
          test.root = ++test.number % test.size;
          // Some ranks have each buffer in the arena, others do not.
          const auto place = [&](std::uint64_t salt) {
            const std::uint64_t mixed =
                test.number * salt + static_cast<std::uint64_t>(rank.rank());
            return mixed % 3 == 0 ? nullptr : rank.arena();
          };
          RunCase(rank, test, place(7), place(5));
        }
      }
    });
  }
}

// Ranks run ahead of each other, and use every mailbox several times.
TEST(OneSided, MailIsReadBeforeItsBoxIsUsedAgain) {
  for (const int size : {2, 5}) {
    RanksSetup setup;
    setup.size = size;
    setup.segments_in_flight = 40;
    OnRanks(setup, [&](TestRank& rank) {
      constexpr std::size_t kCalls = 10 * Mailboxes::kBoxes;
      Case test;
      test.size = static_cast<std::size_t>(size);
      std::vector<std::vector<float>> data(kCalls, std::vector<float>(64));
      std::vector<Ending> endings(kCalls);
      for (std::size_t k = 0; k < kCalls; ++k) {
        test.number = k;
        for (std::size_t i = 0; i < 64; ++i) {
          data[k][i] = test.In(static_cast<std::size_t>(rank.rank()), i);
        }
        CollectiveCall call;
        call.output = data[k].data();
        call.count = 64;
        // Other syncs lie between those with mail.
        call.algorithm =
            k % 5 == 4 ? &allreduce::kShared : &allreduce::kOneSync;
        rank.executor().Start(call, endings[k].done());
        if (k % 3 == static_cast<std::size_t>(rank.rank()) % 3) {
          rank.Poll();
        }
      }
      rank.Drive([&] {
        return std::all_of(endings.begin(), endings.end(),
                           [](const Ending& e) { return e.over(); });
      });
      for (std::size_t k = 0; k < kCalls; ++k) {
        ASSERT_TRUE(endings[k].status.ok()) << endings[k].status.message();
        test.number = k;
        for (std::size_t i = 0; i < 64; ++i) {
          ASSERT_EQ(data[k][i], test.Sum(i)) << "call " << k;
        }
      }
    });
  }
}

TEST(OneSided, RefusesRanksThatShareNoMemory) {
  OnRanks({.size = 2, .memory = false}, [](TestRank& rank) {
    for (const CollectiveKind kind : kKinds) {
      const Status refused =
          ValidateAlgorithm(kind, OneSided(kind), rank.group());
      EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(refused.message().find(StrCat(Name(kind), " algorithm ")),
                std::string::npos)
          << refused.message();
    }
  });
}

}  // namespace
}  // namespace gradientflow::testing
