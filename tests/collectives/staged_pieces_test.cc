#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/staged_fixture.h"
#include "tests/device/fake_device.h"

// How pieces travel between the device, staging and the inner collective.
namespace gradientflow::testing {
namespace {

class StagedPiecesLazily : public StagedPieces {
 protected:
  StagedPiecesLazily() : StagedPieces(FakeLag::kLazy) {}
};

TEST_F(StagedPiecesLazily, AreFedAsTheyComeAndTakenAsTheyEnd) {
  constexpr std::size_t kCount = 10 * kPiece + 7;
  const std::vector<float> values = Contribution(0, kCount, 1);
  const DeviceMemory memory = Upload(values);
  Ending ending;
  staged_->Start(Allreduce(memory, kCount), ending.done());
  PollUntil([&] { return !inner_.calls.empty(); });
  const CollectiveCall call = inner_.calls[0].call;
  ASSERT_NE(call.feed, nullptr);
  EXPECT_NE(call.output, static_cast<void*>(memory.get()));
  EXPECT_FALSE(device_.Owns(call.output));
  EXPECT_EQ(call.step, 12);
  EXPECT_EQ(call.bucket, 34);

  // Pieces arrive one after the other and unchanged, the first long before the
  // last.
  std::size_t seen = call.feed->available();
  EXPECT_LT(seen, 2 * kPiece);
  int growths = 0;
  PollUntil([&] {
    const std::size_t now = call.feed->available();
    EXPECT_GE(now, seen);
    if (now > seen) {
      ++growths;
      EXPECT_EQ(std::memcmp(static_cast<float*>(call.output) + seen,
                            values.data() + seen, (now - seen) * sizeof(float)),
                0);
    }
    seen = now;
    return seen == kCount;
  });
  EXPECT_GE(growths, 5);

  // The second half is back while the first is still on its way.
  const std::uint64_t copies = device_.count(FakeCall::kCopy);
  inner_.Finish(0, 5 * kPiece - 3, kCount - 5 * kPiece + 3);
  PollUntil([&] { return device_.count(FakeCall::kCopy) == copies + 6; });
  EXPECT_FALSE(ending.over());
  // The rest, in small parts.
  for (std::size_t end = 5 * kPiece - 3; end > 0;) {
    const std::size_t begin = end > 700 ? end - 700 : 0;
    inner_.Finish(0, begin, end - begin);
    end = begin;
  }
  inner_.End(0, Status(), kFlagNonfinite);
  EXPECT_FALSE(ending.over()) << "the device still copies";
  EXPECT_EQ(staged_->in_flight(), 1);
  PollUntil([&] { return ending.over(); });
  EXPECT_TRUE(ending.status.ok());
  EXPECT_TRUE(ending.nonfinite);
  EXPECT_EQ(staged_->in_flight(), 0);
  const std::vector<float> result = Values(memory, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(result[i], 2.0F * values[i]) << i;
  }
  EXPECT_EQ(device_.count(FakeCall::kSynchronize), 0);
  EXPECT_EQ(device_.pageable_copies(), 0);
}

TEST_F(StagedPieces, NeverStopTheHost) {
  const std::vector<float> values = Contribution(0, 5000, 1);
  const DeviceMemory memory = Upload(values);
  const DeviceMemory other = Upload(values);
  std::vector<float> host(100, 1.0F);
  device_.HoldStreams();
  Ending first;
  Ending second;
  Ending plain;
  staged_->Start(Allreduce(memory, 5000), first.done());
  staged_->Start(Allreduce(other, 5000), second.done());
  CollectiveCall on_host = Allreduce(memory, 100);
  on_host.output = host.data();
  on_host.channel = Channel::kPlain;
  staged_->Start(on_host, plain.done());
  // A call on host memory is passed on at once, unchanged.
  ASSERT_EQ(inner_.calls.size(), 1);
  EXPECT_EQ(inner_.calls[0].call.output, host.data());
  inner_.End(0, Status());
  EXPECT_TRUE(plain.over());
  staged_->Poll();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(staged_->Poll()) << "nothing can have moved";
  }
  // Both inner calls wait for their first element.
  ASSERT_EQ(inner_.calls.size(), 2 + 1);
  EXPECT_EQ(inner_.calls[1].call.feed->available(), 0);
  EXPECT_EQ(inner_.calls[2].call.feed->available(), 0);
  EXPECT_EQ(staged_->in_flight(), 2);
  device_.ReleaseStreams();
  for (std::size_t call : {1, 2}) {
    PollUntil(
        [&] { return inner_.calls[call].call.feed->available() == 5000; });
    inner_.Finish(call, 0, 5000);
  }
  device_.HoldStreams();
  inner_.End(1, Status());
  inner_.End(2, Status());
  for (int i = 0; i < 1000; ++i) staged_->Poll();
  EXPECT_EQ(staged_->in_flight(), 2 - first.times - second.times);
  EXPECT_FALSE(second.over());
  device_.ReleaseStreams();
  PollUntil([&] { return first.over() && second.over(); });
  EXPECT_EQ(Values(memory, 5000)[4999], 2.0F * values[4999]);
  EXPECT_EQ(device_.count(FakeCall::kSynchronize), 0);
}

TEST_F(StagedPieces, ReachTheInnerCollectiveInTheOrderOfTheirChannel) {
  const DeviceMemory memory = Upload(std::vector<float>(3000, 1.0F));
  const DeviceMemory more = Upload(std::vector<float>(3000, 1.0F));
  std::vector<float> host(100, 1.0F);
  device_.HoldStreams();
  std::vector<Ending> endings(3);
  // The root of a broadcast sends once all its elements are on the host.
  CollectiveCall broadcast = Allreduce(memory, 3000);
  broadcast.kind = CollectiveKind::kBroadcast;
  staged_->Start(broadcast, endings[0].done());
  CollectiveCall on_host = Allreduce(memory, 100);
  on_host.output = host.data();
  staged_->Start(on_host, endings[1].done());
  CollectiveCall sparse = Allreduce(more, 2500);
  sparse.extents = {{0, 1000}, {1500, 1500}};
  staged_->Start(sparse, endings[2].done());
  for (int i = 0; i < 100; ++i) staged_->Poll();
  EXPECT_TRUE(inner_.calls.empty());
  EXPECT_EQ(staged_->in_flight(), 3);
  device_.ReleaseStreams();
  PollUntil([&] { return inner_.calls.size() == 3; });
  EXPECT_EQ(inner_.calls[0].call.kind, CollectiveKind::kBroadcast);
  EXPECT_EQ(inner_.calls[0].call.feed, nullptr);
  EXPECT_EQ(inner_.calls[1].call.output, host.data());
  // Packed, but with the signature of the original call.
  EXPECT_TRUE(inner_.calls[2].call.extents.empty());
  EXPECT_EQ(inner_.calls[2].call.place, HashOf(sparse.extents));
  EXPECT_EQ(inner_.calls[1].call.place, 0);
  PollUntil([&] { return inner_.calls[2].call.feed->available() == 2500; });
  inner_.Finish(2, 0, 2500);
  for (std::size_t call : {0, 1, 2}) inner_.End(call, Status());
  PollUntil([&] {
    return endings[0].over() && endings[1].over() && endings[2].over();
  });
  EXPECT_EQ(staged_->in_flight(), 0);
}

TEST_F(StagedPieces, WaitForRoomInTheirOrder) {
  // 48 KiB are for gradients: two of these calls fit, then the next.
  constexpr std::size_t kCount = 5 * kPiece;
  std::vector<DeviceMemory> memories;
  std::vector<Ending> endings(5);
  for (Ending& ending : endings) {
    memories.push_back(Upload(std::vector<float>(kCount, 1.0F)));
    staged_->Start(Allreduce(memories.back(), kCount), ending.done());
  }
  // A plain call does not wait for them.
  Ending plain;
  const DeviceMemory small = Upload(std::vector<float>(50, 1.0F));
  CollectiveCall call = Allreduce(small, 50);
  call.channel = Channel::kPlain;
  staged_->Start(call, plain.done());
  for (int i = 0; i < 100; ++i) staged_->Poll();
  ASSERT_EQ(inner_.calls.size(), 3);
  EXPECT_EQ(inner_.calls[2].call.count, 50);
  for (std::size_t ended : {0, 1, 3, 4, 5}) {
    PollUntil([&] {
      return inner_.calls.size() > ended &&
             inner_.calls[ended].call.feed->available() == kCount;
    });
    inner_.Finish(ended, 0, kCount);
    inner_.End(ended, Status());
  }
  PollUntil([&] { return endings[4].over(); });
  EXPECT_LE(staged_->staging_bytes(), std::size_t{64} << 10);
  PollUntil([&] { return inner_.calls[2].call.feed->available() == 50; });
  inner_.Finish(2, 0, 50);
  inner_.End(2, Status());
  PollUntil([&] { return plain.over(); });
}

TEST_F(StagedPieces, OfACallThatIsLargerThanAllStagingGrowIt) {
  constexpr std::size_t kCount = 30 * kPiece + 1;
  const DeviceMemory memory = Upload(std::vector<float>(kCount, 1.5F));
  const DeviceMemory small = Upload(std::vector<float>(kPiece, 1.5F));
  Ending before;
  Ending large;
  staged_->Start(Allreduce(small, kPiece), before.done());
  staged_->Start(Allreduce(memory, kCount), large.done());
  for (int i = 0; i < 100; ++i) staged_->Poll();
  ASSERT_EQ(inner_.calls.size(), 1) << "the ring is in use";
  PollUntil([&] { return inner_.calls[0].call.feed->available() == kPiece; });
  inner_.Finish(0, 0, kPiece);
  inner_.End(0, Status());
  PollUntil([&] {
    return inner_.calls.size() == 2 &&
           inner_.calls[1].call.feed->available() == kCount;
  });
  EXPECT_GE(staged_->staging_bytes(), kCount * sizeof(float));
  inner_.Finish(1, 0, kCount);
  inner_.End(1, Status());
  PollUntil([&] { return large.over(); });
  EXPECT_TRUE(before.status.ok() && large.status.ok());
  EXPECT_EQ(Values(memory, kCount)[kCount - 1], 3.0F);
}

// This happens if the caller's stream waits for a library that waits for a dead
// rank.
TEST_F(StagedPieces, EndCallsWithoutADeviceThatIsNotDoneAfterAFailure) {
  const DeviceMemory memory = Upload(std::vector<float>(3 * kPiece, 1.0F));
  device_.HoldStreams();
  Ending ending;
  staged_->Start(Allreduce(memory, 3 * kPiece), ending.done());
  PollUntil([&] { return inner_.calls.size() == 1; });
  fabric_.Fail(Status(StatusCode::kUnavailable, "rank 1 has died"));
  staged_->Poll();
  inner_.End(0, fabric_.status());
  clock_.Advance(std::chrono::seconds(4));
  staged_->Poll();
  EXPECT_FALSE(ending.over());
  EXPECT_FALSE(staged_->left_behind());
  clock_.Advance(std::chrono::seconds(2));
  PollUntil([&] { return ending.over(); });
  EXPECT_TRUE(staged_->left_behind());
  EXPECT_EQ(staged_->in_flight(), 0);
  EXPECT_EQ(ending.status.code(), StatusCode::kUnavailable);
  for (const char* part : {"rank 1 has died", "fake:0", "6 s"}) {
    EXPECT_NE(ending.status.message().find(part), std::string::npos)
        << ending.status.message();
  }
  device_.ReleaseStreams();
  for (int i = 0; i < 10; ++i) staged_->Poll();
  // The device still writes to the memory, which is destroyed later.
  staged_.reset();
  EXPECT_EQ(ending.times, 1);
}

}  // namespace
}  // namespace gradientflow::testing
