#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "kernels/kernels.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/transports/thread_places.h"
#include "transports/arena.h"

// Allreduces in which some ranks contribute their pool and others values packed
// in the wire dtype: all must end with the same bits.
namespace gradientflow::testing {
namespace {

using Algorithm = const CollectiveAlgorithm*;

struct MixedCase {
  DType pool = DType::kFloat32;
  DType wire = DType::kFloat16;
  ReduceOp op = ReduceOp::kMean;
  float scale = 1.0F;
  Algorithm algorithm = nullptr;
  std::size_t count = 0;
  bool gaps = false;  // In the pools.
  float unscale = 1.0F;
};

std::string Describe(const MixedCase& c) {
  return StrCat(c.count, " ", Name(c.pool), " as ", Name(c.wire), ", ",
                Name(c.op), ", scale ", c.scale, ", unscale ", c.unscale, ", ",
                Name(c.algorithm), c.gaps ? ", with gaps" : "");
}

bool HoldsPool(int rank) { return rank % 2 == 0; }

// A third of the elements, a gap, and the rest.
std::vector<Extent> ExtentsOf(const MixedCase& c) {
  if (!c.gaps || c.count < 3) return {};
  const std::size_t third = c.count / 3;
  return {{2, third}, {third + 5, c.count - third}};
}

// A rank's contribution in memory: its pool, with gaps, or its packed values.
class Contributed {
 public:
  Contributed(TestRank& rank, const MixedCase& c,
              const std::vector<float>& values)
      : count_(c.count),
        dtype_(HoldsPool(rank.rank()) ? c.pool : c.wire),
        size_(SizeOf(dtype_)) {
    if (HoldsPool(rank.rank())) extents_ = ExtentsOf(c);
    own_.assign((count_ + 9) * size_, kGap);
    // If there is shared memory, some ranks use it directly.
    if (rank.arena() != nullptr && rank.rank() % 4 != 3) {
      arena_ = rank.arena();
      shared_ = arena_->Allocate(own_.size()).value();
      std::copy(own_.begin(), own_.end(), shared_.data);
    } else if (rank.places() != nullptr && rank.rank() % 4 != 3) {
      places_ = rank.places();
      places_->Register(own_.data(), own_.size());
    }
    const std::vector<std::byte> packed = Encode(dtype_, values);
    EachRun([&](std::byte* run, std::size_t at, std::size_t bytes) {
      std::copy_n(packed.data() + at, bytes, run);
    });
  }
  ~Contributed() {
    if (arena_ != nullptr) arena_->Free(shared_);
    if (places_ != nullptr) places_->Deregister(own_.data());
  }
  Contributed(const Contributed&) = delete;
  Contributed& operator=(const Contributed&) = delete;

  std::byte* data() { return arena_ != nullptr ? shared_.data : own_.data(); }
  DType dtype() const { return dtype_; }
  const std::vector<Extent>& extents() const { return extents_; }

  std::vector<std::byte> Packed() {
    std::vector<std::byte> result(count_ * size_);
    EachRun([&](const std::byte* run, std::size_t at, std::size_t bytes) {
      std::copy_n(run, bytes, result.data() + at);
    });
    if (!extents_.empty()) {
      const std::size_t gap = extents_[0].begin + extents_[0].count;
      EXPECT_EQ(data()[0], kGap);
      EXPECT_EQ(data()[gap * size_], kGap) << "a gap was written to";
    }
    return result;
  }

 private:
  static constexpr std::byte kGap{0x5A};

  template <typename Visit>
  void EachRun(Visit visit) {
    std::size_t at = 0;
    for (const Extent& extent : extents_) {
      visit(data() + extent.begin * size_, at * size_, extent.count * size_);
      at += extent.count;
    }
    if (extents_.empty()) visit(data(), 0, count_ * size_);
  }

  const std::size_t count_;
  const DType dtype_;
  const std::size_t size_;
  std::vector<Extent> extents_;
  std::vector<std::byte> own_;
  SharedArena* arena_ = nullptr;
  BufferView shared_;
  ThreadPlaces* places_ = nullptr;
};

// Runs the case, and returns the result in the form that this rank's pool has
// or would have.
std::vector<std::byte> RunMixed(TestRank& rank, const MixedCase& c,
                                const std::vector<float>& values,
                                bool* nonfinite) {
  Contributed contributed(rank, c, values);
  CollectiveCall call;
  call.output = contributed.data();
  call.count = c.count;
  call.dtype = contributed.dtype();
  call.wire = c.wire;
  call.op = c.op;
  call.scale = c.scale;
  call.unscale = c.unscale;
  call.keep_scaled = call.dtype != c.pool;
  call.algorithm = c.algorithm;
  call.extents = contributed.extents();
  call.place = HashOf({{1, c.count}});  // The same whichever ranks pack.
  Ending ending;
  rank.executor().Start(call, ending.done());
  rank.Drive([&] { return ending.over(); });
  EXPECT_TRUE(ending.status.ok()) << Describe(c) << ", rank " << rank.rank()
                                  << ": " << ending.status.ToString();
  *nonfinite = ending.nonfinite;
  const std::vector<std::byte> result = contributed.Packed();
  if (HoldsPool(rank.rank())) return result;
  const bool scaled = c.pool == DType::kFloat32 && c.wire != c.pool;
  const float unscale = scaled ? c.unscale : 1.0F;
  // Values that the wire can hold may be too large for the pool.
  std::vector<std::byte> taken_over(c.count * SizeOf(c.pool));
  std::uint32_t too_much = 0;
  kernels::CpuKernels().convert({result.data(), c.wire, taken_over.data(),
                                 c.pool, nullptr, c.count, unscale, &too_much},
                                nullptr);
  if (too_much != 0) *nonfinite = true;
  return taken_over;
}

class Mixed : public ::testing::TestWithParam<std::tuple<int, bool, int>> {
 protected:
  RanksSetup ranks() const {
    RanksSetup setup;
    std::tie(setup.size, setup.memory, setup.ranks_per_host) = GetParam();
    setup.places = !setup.memory && setup.size > 1;
    setup.same_dtypes = false;
    return setup;
  }
};

// One rounding of each contribution and one of the result, or one per hop; a
// 16-bit pool has been rounded before.
double UlpsFor(int size) { return 3.5 + 1.0 * size; }

TEST_P(Mixed, RanksEndWithTheSameBits) {
  const RanksSetup setup = ranks();
  std::vector<MixedCase> cases;
  for (Algorithm algorithm : AlgorithmsFor(setup)) {
    for (std::size_t count : {1, 7, 97, 1031, 4099, 9001}) {
      cases.push_back({DType::kFloat32, DType::kFloat16, ReduceOp::kMean, 1.0F,
                       algorithm, count, count % 2 == 1 && count > 100});
      cases.push_back({DType::kFloat32, DType::kFloat16, ReduceOp::kSum, 0.25F,
                       algorithm, count, false});
    }
    for (DType pool : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (DType wire : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        cases.push_back(
            {pool, wire, ReduceOp::kMean, 0.5F, algorithm, 2503, true});
        cases.push_back({pool, wire, ReduceOp::kMean, 1.0F, algorithm, 2503,
                         true, 1.0F / 3});
      }
    }
  }
  std::vector<std::vector<std::vector<std::byte>>> results(cases.size());
  for (auto& of_case : results) of_case.resize(setup.size);
  OnRanks(setup, [&](TestRank& rank) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      bool nonfinite = true;
      results[i][rank.rank()] =
          RunMixed(rank, cases[i], Contribution(rank.rank(), cases[i].count, i),
                   &nonfinite);
      EXPECT_FALSE(nonfinite) << Describe(cases[i]);
      if (::testing::Test::HasFailure()) return;
    }
  });
  if (HasFailure()) return;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const MixedCase& c = cases[i];
    for (int r = 1; r < setup.size; ++r) {
      ASSERT_EQ(results[i][r], results[i][0])
          << Describe(c) << ": ranks 0 and " << r << " differ";
    }
    const double unscale = c.pool == DType::kFloat32 ? double{c.unscale} : 1.0;
    const double factor =
        double{c.scale} * unscale / (c.op == ReduceOp::kMean ? setup.size : 1);
    EXPECT_TRUE(Near(Decode(c.pool, results[i][0].data(), c.count),
                     ExactSum(setup.size, c.count, i, factor),
                     std::min(Precision(c.pool), Precision(c.wire)),
                     UlpsFor(setup.size)))
        << Describe(c);
  }
}

TEST_P(Mixed, RanksKnowOfAnythingNotFinite) {
  const RanksSetup setup = ranks();
  const float huge = std::numeric_limits<float>::max();
  struct Bad {
    DType pool;
    DType wire;
    float value;
    float elsewhere;  // What the other ranks add.
  };
  // An infinity, and values too large for the wire, the sum, and the pool.
  const Bad bads[] = {
      {DType::kFloat32, DType::kFloat16, std::numeric_limits<float>::infinity(),
       1.0F},
      {DType::kFloat32, DType::kFloat16, huge, 0.0F},
      {DType::kFloat32, DType::kFloat16, 60000.0F, 60000.0F},
      {DType::kFloat16, DType::kFloat32, 60000.0F, 60000.0F},
  };
  OnRanks(setup, [&](TestRank& rank) {
    for (Algorithm algorithm : AlgorithmsFor(setup)) {
      for (int who = 0; who < setup.size; ++who) {
        for (const Bad& bad : bads) {
          // A pool's own contribution cannot be too large for it.
          MixedCase c = {bad.pool, bad.wire,  ReduceOp::kSum,
                         1.0F,     algorithm, 301};
          std::vector<float> values(c.count, 0.5F);
          values[37] = rank.rank() == who ? bad.value : bad.elsewhere;
          bool nonfinite = false;
          RunMixed(rank, c, values, &nonfinite);
          EXPECT_TRUE(nonfinite)
              << Describe(c) << ", " << bad.value << " on rank " << who
              << ", seen by rank " << rank.rank() << " of " << rank.size();
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  });
}

std::string ParamName(
    const ::testing::TestParamInfo<std::tuple<int, bool, int>>& info) {
  const auto [size, memory, per_host] = info.param;
  return StrCat(memory ? "memory" : "messages", size,
                per_host > 0 ? "hosts" : "");
}

INSTANTIATE_TEST_SUITE_P(OneHost, Mixed,
                         ::testing::Combine(::testing::Values(2, 3, 5, 8),
                                            ::testing::Bool(),
                                            ::testing::Values(0)),
                         ParamName);
// Hosts of three ranks; with five and seven ranks the last host has fewer.
INSTANTIATE_TEST_SUITE_P(Hosts, Mixed,
                         ::testing::Combine(::testing::Values(5, 6, 7),
                                            ::testing::Bool(),
                                            ::testing::Values(3)),
                         ParamName);

TEST(MixedCalls, StillHaveToAgree) {
  struct Difference {
    const char* what;
    void (*make)(CollectiveCall*);
  };
  const Difference differences[] = {
      {"wire", [](CollectiveCall* c) { c->wire = DType::kBFloat16; }},
      {"count", [](CollectiveCall* c) { c->count = 6; }},
      {"scale", [](CollectiveCall* c) { c->scale = 2.0F; }},
      {"unscale", [](CollectiveCall* c) { c->unscale = 0.5F; }},
      {"step", [](CollectiveCall* c) { c->step = 9; }},
  };
  for (const bool same : {true, false}) {
    CallGroup group;
    group.size = 2;
    group.same_dtypes = same;
    CallPlanner planner(group, TypicalCostModels(), {4096});
    CollectiveCall call;
    call.count = 7;
    call.wire = DType::kFloat16;
    const auto signature = [&](const CollectiveCall& c) {
      return SignatureOf(c, planner.Plan(c));
    };
    for (const Difference& difference : differences) {
      CollectiveCall other = call;
      difference.make(&other);
      EXPECT_NE(signature(other), signature(call)) << difference.what;
    }
    // The call as a rank makes it that stages.
    CollectiveCall packed = call;
    packed.dtype = DType::kFloat16;
    EXPECT_EQ(signature(packed) == signature(call), !same);
    CollectiveCall sparse = call;
    sparse.extents = {{3, 7}};
    EXPECT_NE(signature(sparse), signature(call));
    // Ranks that pack still compare what they packed.
    CollectiveCall from_sparse = call;
    from_sparse.place = HashOf(sparse.extents);
    EXPECT_EQ(signature(from_sparse), signature(sparse));
    EXPECT_EQ(planner.Plan(packed).segment_elements,
              planner.Plan(call).segment_elements);
  }
}

}  // namespace
}  // namespace gradientflow::testing
