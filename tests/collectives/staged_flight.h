#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/device/device.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/staged_ranks.h"

namespace gradientflow::testing {

struct StagedCase {
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat16;
  ReduceOp op = ReduceOp::kMean;
  std::size_t count = 0;
  bool gaps = false;
  const CollectiveAlgorithm* algorithm = nullptr;
  Channel channel = Channel::kGradients;
  bool attached = false;  // The network card reaches the memory.
};

inline std::string Describe(const StagedCase& c) {
  return StrCat(c.count, " ", Name(c.dtype), " as ", Name(c.wire), ", ",
                Name(c.op), ", ", Name(c.algorithm), c.gaps ? ", gaps" : "",
                c.attached ? ", attached" : "");
}

// A staged allreduce under way: its memory, and how it ends.
class Flight {
 public:
  Flight(DeviceRank& rank, const StagedCase& c, std::uint64_t seed)
      : rank_(rank), case_(c), seed_(seed), size_(SizeOf(c.dtype)) {
    if (c.gaps && c.count > 2) {
      const std::size_t third = c.count / 3;
      extents_ = {{3, third}, {third + 4, 1}, {third + 9, c.count - third - 1}};
    }
    const std::size_t elements = c.count + (extents_.empty() ? 0 : 12);
    pool_.assign(elements * size_, kGap);
    const std::vector<std::byte> packed =
        Encode(c.dtype, Contribution(rank.host().rank(), c.count, seed));
    EachRun([&](std::size_t at, std::size_t from, std::size_t bytes) {
      std::memcpy(pool_.data() + at, packed.data() + from, bytes);
    });
    memory_ = rank.Upload(pool_);
    if (c.attached) rank.Attach(memory_, pool_.size());
    call_.output = memory_.get();
    call_.count = c.count;
    call_.dtype = c.dtype;
    call_.wire = c.wire;
    call_.op = c.op;
    call_.scale = 0.5F;
    call_.extents = extents_;
    call_.algorithm = c.algorithm;
    call_.channel = c.channel;
    call_.step = 7;
    call_.bucket = seed;
  }

  ~Flight() {
    if (case_.attached) rank_.host().places()->Detach(memory_.get());
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  void Start() { rank_.staged().Start(call_, ending_.done()); }
  // Starts again with the same contributions.
  void Restart() {
    ending_ = Ending();
    rank_.Write(memory_.get(), pool_);
    Start();
  }
  const Ending& ending() const { return ending_; }
  CollectiveCall& call() { return call_; }

  std::vector<std::byte> Packed() {
    const std::vector<std::byte> pool = rank_.Download(memory_, pool_.size());
    std::vector<std::byte> packed(case_.count * size_);
    std::vector<std::byte> rest = pool;
    EachRun([&](std::size_t at, std::size_t from, std::size_t bytes) {
      std::memcpy(packed.data() + from, pool.data() + at, bytes);
      std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(at), bytes, kGap);
    });
    EXPECT_EQ(rest, std::vector<std::byte>(pool.size(), kGap))
        << Describe(case_) << ": a gap was written to";
    return packed;
  }

  // The executor's result for the contributions packed on the host.
  std::vector<std::byte> Expected() {
    const std::vector<std::byte> mine = Encode(
        case_.dtype, Contribution(rank_.host().rank(), case_.count, seed_));
    const DType wire = case_.wire;
    std::vector<std::byte> packed =
        Encode(wire, Decode(case_.dtype, mine.data(), case_.count));
    packed.resize(packed.size() + 1);
    CollectiveCall call = call_;
    call.output = packed.data();
    call.dtype = call.wire = wire;
    call.extents.clear();
    Ending ending;
    rank_.host().executor().Start(call, ending.done());
    rank_.Drive([&] { return ending.over(); });
    EXPECT_TRUE(ending.status.ok()) << ending.status.ToString();
    return Encode(case_.dtype, Decode(wire, packed.data(), case_.count));
  }

  void Check() {
    const std::string what =
        StrCat(Describe(case_), ", rank ", rank_.host().rank(), " of ",
               rank_.host().size());
    ASSERT_EQ(ending_.times, 1) << what;
    ASSERT_TRUE(ending_.status.ok())
        << what << ": " << ending_.status.ToString();
    EXPECT_FALSE(ending_.nonfinite) << what;
    const std::vector<std::byte> seen = Packed();
    EXPECT_TRUE(seen == Expected()) << what;
    const int size = rank_.host().size();
    if (case_.op != ReduceOp::kMean) return;
    EXPECT_TRUE(Near(Decode(case_.dtype, seen.data(), case_.count),
                     ExactSum(size, case_.count, seed_, 0.5 / size),
                     std::min(Precision(case_.dtype), Precision(case_.wire)),
                     4 + size))
        << what;
  }

 private:
  static constexpr std::byte kGap{0x5A};

  // visit(byte of the pool, byte of the packed elements, bytes)
  template <typename Visit>
  void EachRun(Visit visit) const {
    std::size_t at = 0;
    for (const Extent& extent : extents_) {
      visit(extent.begin * size_, at * size_, extent.count * size_);
      at += extent.count;
    }
    if (extents_.empty() && case_.count > 0) visit(0, 0, case_.count * size_);
  }

  DeviceRank& rank_;
  const StagedCase case_;
  const std::uint64_t seed_;
  const std::size_t size_;
  std::vector<Extent> extents_;
  std::vector<std::byte> pool_;
  DeviceMemory memory_;
  CollectiveCall call_;
  Ending ending_;
};

}  // namespace gradientflow::testing
