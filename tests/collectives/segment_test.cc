#include "gradientflow/collectives/segment.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/dtype.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/mailboxes.h"
#include "gradientflow/collectives/operation.h"
#include "gradientflow/collectives/schedule.h"
#include "gradientflow/collectives/slabs.h"
#include "kernels/kernels.h"
#include "transports/fabric.h"
#include "transports/inproc/create.h"
#include "transports/poller.h"

// One segment on each rank, all driven from this thread, so that the tests
// decide which rank runs when.
namespace gradientflow {
namespace {

// A rank with a fabric, a call and the one segment that runs the call.
class Rank {
 public:
  Rank(InprocGroup& all, int rank, bool memory)
      : fabric_(std::make_unique<Fabric>(rank, all.size(), clock_,
                                         Poller::Create().value(),
                                         FabricOptions())),
        mailboxes_(memory ? &all.arena(rank) : nullptr),
        context_{*fabric_,
                 memory ? &all.arena(rank) : nullptr,
                 kernels::CpuKernels(),
                 slabs_,
                 mailboxes_,
                 &Rank::OnMessage,
                 this},
        segment_(context_, 0) {
    fabric_->Connect(
        all.Connect(rank, &fabric_->poller(), fabric_.get()).value());
    group_.rank = rank;
    group_.size = all.size();
    group_.all_share = group_.hosts_share = memory;
    call().count = 0;
  }

  CollectiveCall& call() { return operation_.call; }
  CallPlan& plan() { return operation_.plan; }
  Segment& segment() { return segment_; }
  Fabric& fabric() { return *fabric_; }
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  // Runs elements [begin, begin + count) of the call by `schedule`.
  void Start(Schedule schedule, std::size_t begin, std::size_t count) {
    operation_.group = &group_;
    operation_.signature = 1;
    operation_.bytes_sent = &bytes_sent_;
    operation_.SetFactors();
    operation_.SetMemory();
    segment_.Start(&operation_, 0, {begin, count},
                   std::make_shared<const Schedule>(std::move(schedule)),
                   {.first_sync = 1});
  }
  // Drives the segment as far as it goes.
  void Drive() {
    for (bool moved = true; moved;) {
      moved = !segment_.awaits_messages() && segment_.Advance();
      moved |= fabric_->Poll();
    }
    EXPECT_TRUE(segment_.status().ok()) << segment_.status().ToString();
    EXPECT_TRUE(fabric_->status().ok()) << fabric_->status().ToString();
  }

 private:
  static void OnMessage(void* self, std::uint64_t cookie, std::uint32_t flags,
                        const Status& status) {
    auto& rank = *static_cast<Rank*>(self);
    EXPECT_TRUE(status.ok()) << status.ToString();
    rank.segment_.OnMessage(static_cast<std::uint32_t>(cookie), flags);
  }

  const SteadyClock clock_;
  std::unique_ptr<Fabric> fabric_;
  Slabs slabs_;
  Mailboxes mailboxes_;
  std::uint64_t bytes_sent_ = 0;
  const SegmentArgs context_;
  CallGroup group_;
  Operation operation_;
  Segment segment_;
};

class SegmentTest : public ::testing::Test {
 protected:
  void Make(int size, bool memory) {
    ranks_.clear();
    all_ = InprocGroup::Create(size, {std::size_t{16} << 20, 65536}).value();
    for (int r = 0; r < size; ++r) {
      ranks_.push_back(std::make_unique<Rank>(*all_, r, memory));
    }
  }
  Rank& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  // An allreduce of all of `data`.
  void SetCall(int rank, std::vector<float>* data) {
    at(rank).call().output = data->data();
    at(rank).call().count = data->size();
  }
  bool Done() {
    bool done = true;
    for (const auto& rank : ranks_) done &= rank->segment().done();
    return done;
  }
  void DriveAll() {
    for (int turn = 0; turn < 1000 && !Done(); ++turn) {
      for (const auto& rank : ranks_) rank->Drive();
    }
    ASSERT_TRUE(Done());
  }

  std::shared_ptr<InprocGroup> all_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

std::vector<float> Random(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> made(count);
  for (float& value : made) value = values(random);
  return made;
}

TEST_F(SegmentTest, RunsEveryAllreduceOnItsPartOfTheExtentsAlone) {
  constexpr std::size_t kBegin = 5;
  constexpr std::size_t kCount = 101;
  const std::vector<Extent> extents = {{3, 40}, {50, 1}, {60, 80}};
  for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
    for (const int size : {2, 3, 5, 7}) {
      const bool shares =
          algorithm->memory == CollectiveAlgorithm::Memory::kMustShare;
      Make(size, shares);
      std::vector<std::vector<float>> before;
      std::vector<std::vector<float>> data;
      for (int r = 0; r < size; ++r) {
        before.push_back(Random(150, static_cast<unsigned>(r)));
      }
      data = before;
      for (int r = 0; r < size; ++r) {
        SetCall(r, &data[static_cast<std::size_t>(r)]);
        at(r).call().count = 121;
        at(r).call().extents = extents;
        at(r).plan().algorithm = algorithm;
        at(r).plan().one_sided = shares;
        at(r).Start(MakeSchedule(*algorithm, r, {.size = size}, kCount), kBegin,
                    kCount);
      }
      DriveAll();
      std::size_t element = 0;  // In the call.
      std::vector<bool> takes_part(150, false);
      for (const Extent& extent : extents) {
        for (std::size_t i = 0; i < extent.count; ++i, ++element) {
          takes_part[extent.begin + i] =
              element >= kBegin && element < kBegin + kCount;
        }
      }
      for (std::size_t i = 0; i < 150; ++i) {
        double sum = 0;
        for (const auto& rank : before) sum += double{rank[i]};
        for (std::size_t r = 0; r < data.size(); ++r) {
          if (takes_part[i]) {
            ASSERT_NEAR(data[r][i], sum, 1e-5) << algorithm->name << " " << i;
            ASSERT_EQ(data[r][i], data[0][i]) << algorithm->name << " " << i;
          } else {
            ASSERT_EQ(data[r][i], before[r][i]) << algorithm->name << " " << i;
          }
        }
      }
    }
  }
}

// Rank 0 waits for rank 2 in its first round, while rank 1's message for the
// second round has arrived.
TEST_F(SegmentTest, AnEarlyMessageIsHeldUnlessItsReceiveMayBePostedEarly) {
  for (const bool early : {false, true}) {
    Make(3, false);
    const CollectiveAlgorithm algorithm = {.name = "test",
                                           .make = nullptr,
                                           .price = nullptr,
                                           .receives_early = early};
    std::vector<std::vector<float>> data(3, std::vector<float>(8));
    for (int r = 0; r < 3; ++r) {
      data[static_cast<std::size_t>(r)].assign(8, static_cast<float>(r));
      SetCall(r, &data[static_cast<std::size_t>(r)]);
      at(r).plan().algorithm = &algorithm;
    }
    const Slice low = Data(0, 4);
    const Slice high = Data(4, 4);
    Schedule zero;
    AppendRound({Recv(2, low)}, &zero);
    AppendRound({Recv(1, high)}, &zero);
    Schedule one;
    AppendRound({Send(0, high)}, &one);
    Schedule two;
    AppendRound({Send(0, low)}, &two);
    at(0).Start(zero, 0, 8);
    at(0).Drive();
    at(1).Start(one, 0, 8);
    at(1).Drive();
    at(0).Drive();
    EXPECT_TRUE(at(1).segment().done());
    EXPECT_FALSE(at(0).segment().done());
    EXPECT_EQ(at(0).fabric().held_bytes(1), early ? 0U : 16U);
    at(2).Start(two, 0, 8);
    DriveAll();
    EXPECT_EQ(data[0], std::vector<float>({2, 2, 2, 2, 1, 1, 1, 1}));
  }
}

TEST_F(SegmentTest, MessagesOfOneSegmentToOneRankMatchInTheirOrder) {
  Make(2, false);
  std::vector<float> out = Random(64, 1);
  std::vector<float> in(64);
  SetCall(0, &out);
  SetCall(1, &in);
  Schedule sends;
  Schedule receives;
  for (std::size_t i = 0; i < 64; i += 4) {
    std::vector<Action> send = {Send(1, Data(i, 1)), Send(1, Data(i + 1, 3))};
    AppendRound(std::move(send), &sends);
    AppendRound({Recv(0, Data(i, 1)), Recv(0, Data(i + 1, 3))}, &receives);
  }
  at(0).Start(sends, 0, 64);
  at(1).Start(receives, 0, 64);
  DriveAll();
  EXPECT_EQ(in, out);
  EXPECT_EQ(at(0).bytes_sent(), 256U);
  EXPECT_EQ(at(1).bytes_sent(), 0U);
}

// Rank 0 has the result, and rank 1 passes it on.
TEST_F(SegmentTest, AResultIsRoundedOnceAndThenGoesOnAsItCame) {
  for (const DType wire : {DType::kFloat16, DType::kBFloat16}) {
    Make(3, false);
    std::vector<std::vector<float>> data = {
        Random(33, 7), std::vector<float>(33), std::vector<float>(33)};
    const std::vector<float> result = data[0];
    for (int r = 0; r < 3; ++r) {
      SetCall(r, &data[static_cast<std::size_t>(r)]);
      at(r).call().wire = wire;
      at(r).call().unscale = 1.0F / 3;
    }
    const Slice all = Data(0, 33);
    Action first = Send(1, all);
    first.settle = first.last = true;
    Action onward = Send(2, all);
    onward.relay = true;
    Schedule owner;
    AppendRound({first}, &owner);
    Schedule middle;
    AppendRound({Recv(0, all)}, &middle);
    AppendRound({onward}, &middle);
    Schedule end;
    AppendRound({Recv(1, all)}, &end);
    at(0).Start(owner, 0, 33);
    at(1).Start(middle, 0, 33);
    at(2).Start(end, 0, 33);
    DriveAll();
    EXPECT_EQ(data[1], data[0]);
    EXPECT_EQ(data[2], data[0]);
    const double digits = wire == DType::kFloat16 ? 11 : 8;
    for (std::size_t i = 0; i < 33; ++i) {
      const double exact = double{result[i]} / 3;
      EXPECT_NEAR(data[2][i], exact, std::fabs(exact) * std::exp2(-digits));
    }
    EXPECT_EQ(at(1).bytes_sent(), 66U);
  }
}

TEST_F(SegmentTest, WhatIsNotFiniteOnOneRankIsFlaggedOnThoseItReaches) {
  for (const bool spoilt : {false, true}) {
    Make(2, false);
    std::vector<float> from(9, 1);
    std::vector<float> to(9);
    // Finite here, and too large for the wire.
    if (spoilt) from[8] = 1e30F;
    SetCall(0, &from);
    SetCall(1, &to);
    for (int r : {0, 1}) at(r).call().wire = DType::kFloat16;
    Action send = Send(1, Data(0, 9));
    send.settle = send.last = true;
    Schedule sends;
    AppendRound({send}, &sends);
    Schedule receives;
    AppendRound({Recv(0, Data(0, 9))}, &receives);
    at(0).Start(sends, 0, 9);
    at(1).Start(receives, 0, 9);
    DriveAll();
    for (int r : {0, 1}) {
      EXPECT_EQ(at(r).segment().flags(), spoilt ? kFlagNonfinite : 0U) << r;
    }
    EXPECT_EQ(std::isinf(to[8]), spoilt);
  }
}

// Segments of an allgather take the same part of every rank's block.
TEST_F(SegmentTest, SegmentsOfBlocksFillTheirPartOfEachBlock) {
  constexpr std::size_t kCount = 10;
  Make(3, false);
  std::vector<std::vector<float>> in;
  std::vector<std::vector<float>> out(3, std::vector<float>(30, -1));
  for (unsigned r = 0; r < 3; ++r) in.push_back(Random(kCount, r));
  for (const Extent part : {Extent{0, 4}, Extent{4, 4}, Extent{8, 2}}) {
    for (int r = 0; r < 3; ++r) {
      SetCall(r, &out[static_cast<std::size_t>(r)]);
      CollectiveCall& call = at(r).call();
      call.kind = CollectiveKind::kAllgather;
      call.input = in[static_cast<std::size_t>(r)].data();
      call.count = kCount;
      at(r).plan().count = kCount;
      at(r).plan().blocked_data = true;
      at(r).Start(MakeSchedule(collectives::kDirectAllgather, r, {.size = 3},
                               part.count),
                  part.begin, part.count);
    }
    DriveAll();
    for (int r = 0; r < 3; ++r) at(r).segment().Reset();
    for (std::size_t i = 0; i < 30; ++i) {
      const bool here = i % kCount < part.begin + part.count;
      EXPECT_EQ(out[1][i], here ? in[i / kCount][i % kCount] : -1) << i;
    }
  }
  EXPECT_EQ(out[0], out[1]);
  EXPECT_EQ(out[2], out[1]);
}

// A rank that may look often finds its peers without another turn.
TEST_F(SegmentTest, LooksForItsPeersBeforeItGivesUpItsTurn) {
  Make(2, true);
  std::vector<std::vector<float>> data(2, std::vector<float>(40, 1));
  for (const int r : {0, 1}) {
    SetCall(r, &data[static_cast<std::size_t>(r)]);
    at(r).plan().algorithm = &allreduce::kShared;
    at(r).plan().one_sided = true;
    at(r).Start(MakeSchedule(allreduce::kShared, r, {.size = 2}, 40), 0, 40);
  }
  EXPECT_TRUE(at(0).segment().Advance());
  EXPECT_FALSE(at(0).segment().Advance(10)) << "rank 1 has not come";
  std::thread other([&] {
    while (!at(1).segment().done()) at(1).segment().Advance();
  });
  constexpr int kUntilItComes = std::numeric_limits<int>::max();
  EXPECT_TRUE(at(0).segment().Advance(kUntilItComes));
  EXPECT_TRUE(at(0).segment().done());
  other.join();
  for (const auto& rank : data) EXPECT_EQ(rank, std::vector<float>(40, 2));
}

TEST_F(SegmentTest, ASyncThatStandsNamesTheRanksItWaitsFor) {
  Make(4, true);
  std::vector<std::vector<float>> data(4, std::vector<float>(40, 1));
  const auto start = [&](int r) {
    SetCall(r, &data[static_cast<std::size_t>(r)]);
    at(r).plan().algorithm = &allreduce::kShared;
    at(r).plan().one_sided = true;
    at(r).Start(MakeSchedule(allreduce::kShared, r, {.size = 4}, 40), 0, 40);
    at(r).Drive();
  };
  start(0);
  start(2);
  std::vector<int> awaited;
  at(0).segment().AddAwaited(&awaited);
  EXPECT_EQ(awaited, std::vector<int>({1, 3}));
  EXPECT_EQ(at(0).segment().next_sync(), 1U);
  start(3);
  awaited.clear();
  at(2).segment().AddAwaited(&awaited);
  EXPECT_EQ(awaited, std::vector<int>({1}));
  start(1);
  DriveAll();
  EXPECT_EQ(at(0).segment().next_sync(), 3U);
  for (const auto& rank : data) EXPECT_EQ(rank, std::vector<float>(40, 4));
}

}  // namespace
}  // namespace gradientflow
