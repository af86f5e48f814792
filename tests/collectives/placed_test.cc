#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/placed_layout.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/table.h"
#include "kernels/kernels.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"

// Allreduces whose messages are placed (gdraa), over a network that delivers
// when it likes: they must give the bits of two_sync, and tell each other
// nothing but the data.
namespace gradientflow::testing {
namespace {

using Algorithm = const CollectiveAlgorithm*;
using Random = std::mt19937_64;

// Calls that run at the same time on each rank.
struct PlacedCase {
  DType pool = DType::kFloat32;
  DType wire = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  float scale = 1.0F;
  float unscale = 1.0F;
  std::size_t count = 0;
  bool gaps = false;
  Channel channel = Channel::kPlain;
};

std::string Describe(const PlacedCase& c) {
  return StrCat(c.count, " ", Name(c.pool), " as ", Name(c.wire), ", ",
                Name(c.op), ", scale ", c.scale, ", unscale ", c.unscale,
                c.gaps ? ", with gaps" : "");
}

// Two thirds of the elements, a gap, and the rest.
std::vector<Extent> ExtentsOf(const PlacedCase& c) {
  if (!c.gaps || c.count < 3) return {};
  const std::size_t most = c.count * 2 / 3;
  return {{1, most}, {most + 6, c.count - most}};
}

constexpr DType kIntegers[] = {DType::kInt32, DType::kInt64};

PlacedCase RandomCase(Random* random) {
  PlacedCase c;
  const auto pick = [&](const auto& list) {
    return list[(*random)() % std::size(list)];
  };
  constexpr DType kGradients[] = {DType::kFloat32, DType::kFloat32,
                                  DType::kFloat16, DType::kBFloat16};
  constexpr ReduceOp kSums[] = {ReduceOp::kSum, ReduceOp::kMean};
  constexpr ReduceOp kOthers[] = {ReduceOp::kSum, ReduceOp::kMin,
                                  ReduceOp::kMax};
  const auto kind = (*random)() % 8;
  if (kind == 0) {
    c.pool = c.wire = pick(kIntegers);
    c.op = pick(kOthers);
  } else if (kind == 1) {
    c.pool = c.wire = DType::kFloat64;
    c.op = pick(kSums);
  } else {
    c.pool = pick(kGradients);
    c.wire = kind < 5 ? c.pool : pick(kGradients);
    c.op = pick(kSums);
    if (kind % 2 == 0) c.scale = 0.25F;
    if (kind == 3) c.unscale = 1.0F / 3;
  }
  constexpr std::size_t kMost[] = {1, 9, 100, 5000, 40'000};
  c.count = (*random)() % (pick(kMost) + 1);
  c.gaps = (*random)() % 3 == 0;
  c.channel = (*random)() % 3 == 0 ? Channel::kGradients : Channel::kPlain;
  return c;
}

std::vector<std::byte> EncodeAny(DType dtype, const std::vector<float>& from) {
  const auto as = [&](auto zero) {
    std::vector<std::byte> bytes(from.size() * sizeof(zero));
    for (std::size_t i = 0; i < from.size(); ++i) {
      const auto value = static_cast<decltype(zero)>(from[i] * 16);
      std::memcpy(&bytes[i * sizeof(zero)], &value, sizeof(zero));
    }
    return bytes;
  };
  if (dtype == DType::kInt32) return as(std::int32_t{});
  if (dtype == DType::kInt64) return as(std::int64_t{});
  if (dtype == DType::kFloat64) return as(double{});
  return Encode(dtype, from);
}

// A rank's buffer of a call; the network reaches every other one.
class Buffer {
 public:
  Buffer(TestRank& rank, const PlacedCase& c, std::uint64_t seed)
      : case_(c), extents_(ExtentsOf(c)), size_(SizeOf(c.pool)) {
    memory_.assign((c.count + 9) * size_, std::byte{0x5A});
    const auto packed =
        EncodeAny(c.pool, Contribution(rank.rank(), c.count, seed));
    Each([&](std::byte* run, std::size_t at, std::size_t bytes) {
      std::copy_n(packed.data() + at, bytes, run);
    });
    if (rank.places() == nullptr || (seed + rank.rank()) % 2 == 0) return;
    places_ = rank.places();
    places_->Register(memory_.data(), memory_.size());
  }
  ~Buffer() {
    if (places_ != nullptr) places_->Deregister(memory_.data());
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  CollectiveCall Call(Algorithm algorithm) {
    CollectiveCall call;
    call.output = memory_.data();
    call.count = case_.count;
    call.dtype = case_.pool;
    call.wire = case_.wire;
    call.op = case_.op;
    call.scale = case_.scale;
    call.unscale = case_.unscale;
    call.extents = extents_;
    call.channel = case_.channel;
    call.algorithm = algorithm;
    return call;
  }
  // All of the memory, with the gaps.
  const std::vector<std::byte>& memory() const { return memory_; }
  std::vector<std::byte> Packed() {
    std::vector<std::byte> packed(case_.count * size_);
    Each([&](const std::byte* run, std::size_t at, std::size_t bytes) {
      std::copy_n(run, bytes, packed.data() + at);
    });
    return packed;
  }

 private:
  template <typename Visit>
  void Each(Visit visit) {
    std::size_t at = 0;
    for (const Extent& extent : extents_) {
      visit(memory_.data() + extent.begin * size_, at, extent.count * size_);
      at += extent.count * size_;
    }
    if (extents_.empty()) visit(memory_.data(), 0, case_.count * size_);
  }

  const PlacedCase case_;
  const std::vector<Extent> extents_;
  const std::size_t size_;
  std::vector<std::byte> memory_;
  ThreadPlaces* places_ = nullptr;
};

struct Outcome {
  std::vector<std::byte> memory;
  std::vector<std::byte> packed;
  bool nonfinite = false;
  bool operator==(const Outcome&) const = default;
};

// Runs all cases, of which up to `together` are in flight at a time.
std::vector<std::vector<Outcome>> RunAll(const RanksSetup& setup,
                                         const std::vector<PlacedCase>& cases,
                                         Algorithm algorithm) {
  std::vector<std::vector<Outcome>> outcomes(
      static_cast<std::size_t>(setup.size));
  OnRanks(setup, [&](TestRank& rank) {
    Random late(setup.seed * 10 + static_cast<std::uint64_t>(rank.rank()));
    auto& mine = outcomes[static_cast<std::size_t>(rank.rank())];
    for (std::size_t begin = 0; begin < cases.size(); begin += 4) {
      const std::size_t end = std::min(begin + 4, cases.size());
      std::vector<std::unique_ptr<Buffer>> buffers;
      std::vector<Ending> endings(end - begin);
      for (std::size_t i = begin; i < end; ++i) {
        buffers.push_back(std::make_unique<Buffer>(rank, cases[i], i));
        rank.executor().Start(buffers.back()->Call(algorithm),
                              endings[i - begin].done());
        for (auto n = late() % 20; n > 0; --n) rank.Poll();
      }
      for (std::size_t i = begin; i < end; ++i) {
        const Ending& ending = endings[i - begin];
        rank.Drive([&] { return ending.over(); });
        ASSERT_TRUE(ending.status.ok())
            << Describe(setup) << ": " << Describe(cases[i]) << ": "
            << ending.status.ToString();
        Buffer& buffer = *buffers[i - begin];
        mine.push_back({buffer.memory(), buffer.Packed(), ending.nonfinite});
      }
    }
  });
  return outcomes;
}

// Compares the floats of a call with the sum in float64.
void ExpectTheSum(const RanksSetup& setup, const PlacedCase& c,
                  std::uint64_t seed, const Outcome& seen) {
  if (!IsGradientType(c.pool) || seen.nonfinite) return;
  const bool unscaled = c.pool == DType::kFloat32;
  const double factor = double{c.scale} * (unscaled ? double{c.unscale} : 1.0) /
                        (c.op == ReduceOp::kMean ? setup.size : 1);
  EXPECT_TRUE(Near(Decode(c.pool, seen.packed.data(), c.count),
                   ExactSum(setup.size, c.count, seed, factor),
                   std::min(Precision(c.pool), Precision(c.wire)), 4))
      << Describe(setup) << ": " << Describe(c);
}

TEST(Placed, GivesTheBitsOfTwoSyncAndTheSum) {
  for (int size = 1; size <= 8; ++size) {
    Random random(static_cast<std::uint64_t>(size));
    std::vector<PlacedCase> cases;
    for (int i = 0; i < 60; ++i) cases.push_back(RandomCase(&random));
    RanksSetup messages;
    messages.size = size;
    messages.memory = false;
    const auto expected = RunAll(messages, cases, &allreduce::kTwoSync);
    for (const int window : {1, 2, 3, 8}) {
      RanksSetup placed = messages;
      placed.places = size > 1;
      placed.segments_in_flight = window;
      placed.seed = random();
      const auto seen = RunAll(placed, cases, &allreduce::kGdraa);
      for (std::size_t i = 0; i < cases.size() && !HasFailure(); ++i) {
        ExpectTheSum(placed, cases[i], i, seen[0][i]);
        for (int r = 0; r < size; ++r) {
          ASSERT_TRUE(seen[r][i] == expected[r][i])
              << Describe(placed) << ", window " << window << ", rank " << r
              << ": " << Describe(cases[i]);
        }
      }
    }
  }
}

// With 64 slots and more segments than the notices can number in one turn.
TEST(Placed, UsesItsSlotsAgainAndAgain) {
  RanksSetup setup;
  setup.size = 3;
  setup.memory = false;
  setup.places = true;
  setup.segment_bytes = 64;
  setup.segments_in_flight = 64;
  OnRanks(setup, [&](TestRank& rank) {
    const PlacedCase c = {.count = 16 * 1000 + 1};
    for (std::uint64_t seed = 1; seed < 4; ++seed) {
      Buffer buffer(rank, c, seed);
      Ending ending;
      rank.executor().Start(buffer.Call(&allreduce::kGdraa), ending.done());
      rank.Drive([&] { return ending.over(); });
      ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
      ExpectTheSum(setup, c, seed, {{}, buffer.Packed(), false});
    }
  });
}

// Whatever the number of ranks, there are two messages to each peer and
// nothing else: no announcement, no credit, no acknowledgement.
TEST(Placed, SendsTwoMessagesToEachPeerAndNoOther) {
  constexpr std::uint64_t kCalls = 20;
  constexpr std::size_t kSegment = 1024;  // Elements.
  for (int size = 2; size <= 8; ++size) {
    RanksSetup setup;
    setup.size = size;
    setup.memory = false;
    setup.places = true;
    OnRanks(setup, [&](TestRank& rank) {
      const PlacedCase c = {.count = 5 * kSegment + 331};
      constexpr std::uint64_t kSegments = 6 * kCalls;
      const auto peers = static_cast<std::uint64_t>(size - 1);
      for (std::uint64_t i = 0; i < kCalls; ++i) {
        Buffer buffer(rank, c, i);
        Ending ending;
        rank.executor().Start(buffer.Call(&allreduce::kGdraa), ending.done());
        rank.Drive([&] { return ending.over(); });
        ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
      }
      const ThreadPlaces::Counts& counts = rank.places()->counts();
      rank.Drive([&] { return counts.done == counts.puts; });
      std::uint64_t elements = 0;
      for (const std::size_t count : {kSegment, std::size_t{331}}) {
        const std::size_t own = BlockOf(count, size, rank.rank()).count;
        elements += (count == kSegment ? 5 : 1) *
                    (count - own + peers * std::uint64_t{own});
      }
      EXPECT_EQ(counts.puts, 2 * peers * kSegments);
      EXPECT_EQ(counts.notices, 2 * peers * kSegments);
      EXPECT_EQ(counts.messages, 0U);
      EXPECT_LE(counts.waiting,
                static_cast<std::size_t>(PlacedNotices(
                    size, setup.segment_bytes, setup.segments_in_flight)));
      EXPECT_EQ(rank.executor().bytes_sent(0, Channel::kPlain),
                kCalls * elements * sizeof(float));
      EXPECT_EQ(counts.bytes, kCalls * elements * sizeof(float) +
                                  peers * kSegments * kPlacedHeaderBytes);
    });
  }
}

// Elements that were converted or copied on this thread, and summed.
thread_local std::size_t copied = 0;
thread_local std::size_t summed = 0;
int CountConvert(const kernels::ConvertArgs& args, void* stream) {
  copied += args.n;
  return kernels::CpuKernels().convert(args, stream);
}
int CountReduce(const kernels::ReduceManyArgs& args, void* stream) {
  summed += args.n;
  return kernels::CpuKernels().reduce_many(args, stream);
}

// What the network reaches leaves from the buffer and lands there. Only the
// sum is copied, so that the buffer can be given back.
TEST(Placed, CopiesOnlyTheSumIfTheNetworkReachesTheBuffer) {
  kernels::CpuKernelTable counting = kernels::CpuKernels();
  counting.convert = &CountConvert;
  counting.reduce_many = &CountReduce;
  for (const int size : {2, 3, 5, 8}) {
    for (const bool reached : {true, false}) {
      RanksSetup setup;
      setup.size = size;
      setup.memory = false;
      setup.places = true;
      setup.kernels = &counting;
      OnRanks(setup, [&](TestRank& rank) {
        const PlacedCase c = {.count = 3001};
        // The segments have 1024 elements.
        std::size_t own = 0;
        for (std::size_t at = 0; at < c.count; at += 1024) {
          const std::size_t part = std::min<std::size_t>(1024, c.count - at);
          own += BlockOf(part, size, rank.rank()).count;
        }
        const std::uint64_t seed = rank.rank() % 2 == (reached ? 1 : 0) ? 2 : 1;
        Buffer buffer(rank, c, seed);
        copied = summed = 0;
        Ending ending;
        rank.executor().Start(buffer.Call(&allreduce::kGdraa), ending.done());
        rank.Drive([&] { return ending.over(); });
        ASSERT_TRUE(ending.status.ok()) << ending.status.ToString();
        EXPECT_EQ(summed, own);
        EXPECT_EQ(copied, reached ? own : own + 2 * (c.count - own));
      });
    }
  }
}

}  // namespace
}  // namespace gradientflow::testing
