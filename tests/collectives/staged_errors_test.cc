#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/staged_fixture.h"
#include "tests/device/fake_device.h"

// How staged calls end when something fails.
namespace gradientflow::testing {
namespace {

using StagedErrors = StagedPieces;
class StagedInnerErrors : public StagedPieces,
                          public ::testing::WithParamInterface<bool> {};

TEST_F(StagedErrors, OfStagingFailTheCall) {
  device_.FailCall(FakeCall::kAllocatePinned, 0,
                   Status(StatusCode::kResourceExhausted, "no more memory"));
  const DeviceMemory memory = Upload(std::vector<float>(100, 1.0F));
  Ending ending;
  staged_->Start(Allreduce(memory, 100), ending.done());
  PollUntil([&] { return ending.over(); });
  EXPECT_EQ(ending.status.code(), StatusCode::kResourceExhausted);
  for (const char* part : {"fake:0", "step 12 bucket 34", "512",
                           "no more memory", "bucket_bytes"}) {
    EXPECT_NE(ending.status.message().find(part), std::string::npos)
        << part << " in " << ending.status.message();
  }
  EXPECT_EQ(fabric_.status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(inner_.calls.empty());
}

TEST_F(StagedErrors, OfTheInnerCallWaitForTheDevice) {
  const std::vector<float> values = Contribution(0, 9000, 1);
  const DeviceMemory memory = Upload(values);
  const DeviceMemory waiting = Upload(values);
  device_.HoldStreams();
  Ending ending;
  Ending behind;
  staged_->Start(Allreduce(memory, 9000), ending.done());
  staged_->Start(Allreduce(waiting, 9000), behind.done());
  staged_->Poll();
  ASSERT_EQ(inner_.calls.size(), 1);
  const Status why(StatusCode::kUnavailable, "rank 1 is gone");
  fabric_.Fail(why);
  inner_.End(0, why);
  for (int i = 0; i < 1000; ++i) staged_->Poll();
  EXPECT_FALSE(ending.over()) << "the device still reads the buffer";
  EXPECT_TRUE(behind.over()) << "the device never saw it";
  EXPECT_EQ(staged_->in_flight(), 1);
  const std::uint64_t copies = device_.count(FakeCall::kCopy);
  device_.ReleaseStreams();
  PollUntil([&] { return ending.over(); });
  EXPECT_EQ(ending.status.message(), "rank 1 is gone");
  EXPECT_EQ(behind.status.message(), "rank 1 is gone");
  EXPECT_EQ(device_.count(FakeCall::kCopy), copies) << "no more are begun";
  EXPECT_EQ(Values(memory, 9000), values);
  EXPECT_EQ(staged_->in_flight(), 0);
  // Later calls fail in the same way.
  Ending late;
  staged_->Start(Allreduce(memory, 9000), late.done());
  PollUntil([&] { return late.over(); });
  EXPECT_EQ(late.status.code(), StatusCode::kUnavailable);
}

TEST_P(StagedInnerErrors, DropWhatWasNotSentBack) {
  const std::vector<float> values = Contribution(0, 9 * kPiece, 1);
  const DeviceMemory memory = Upload(values);
  Ending ending;
  staged_->Start(Allreduce(memory, 9 * kPiece), ending.done());
  PollUntil([&] {
    return inner_.calls.size() == 1 &&
           inner_.calls[0].call.feed->available() == 9 * kPiece;
  });
  device_.HoldStreams();
  inner_.Finish(0, 0, 8 * kPiece);
  staged_->Poll();
  const std::uint64_t copies = device_.count(FakeCall::kCopy);
  const Status why(StatusCode::kUnavailable, "rank 1 is gone");
  if (GetParam()) fabric_.Fail(why);
  inner_.End(0, why);
  staged_->Poll();
  EXPECT_FALSE(ending.over()) << "the device still writes to the buffer";
  device_.ReleaseStreams();
  PollUntil([&] { return ending.over(); });
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(staged_->Poll());
  EXPECT_EQ(device_.count(FakeCall::kCopy), copies);
  EXPECT_EQ(ending.times, 1);
}

INSTANTIATE_TEST_SUITE_P(TheJobToo, StagedInnerErrors, ::testing::Bool());

TEST_F(StagedErrors, OfTheCallerAreRefused) {
  class NoFeed final : public Feed {
    std::size_t available() const override { return 0; }
    void Finished(std::size_t, std::size_t) override {}
  };
  const DeviceMemory memory = Upload(std::vector<float>(100, 1.0F));
  NoFeed feed;
  CollectiveCall fed = Allreduce(memory, 100);
  fed.feed = &feed;
  Ending fed_end;
  staged_->Start(fed, fed_end.done());
  EXPECT_FALSE(fed_end.over()) << "not inside the call";
  PollUntil([&] { return fed_end.over(); });
  EXPECT_EQ(fed_end.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(fed_end.status.message().find("fake:0"), std::string::npos);
  EXPECT_TRUE(inner_.calls.empty());
  EXPECT_TRUE(fabric_.status().ok()) << "the caller's mistake, no more";
  inner_.bytes = 4711;
  EXPECT_EQ(staged_->bytes_sent(0, Channel::kPlain), 4711);
}

}  // namespace
}  // namespace gradientflow::testing
