#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/collectives/executor_ranks.h"
#include "tests/collectives/staged_ranks.h"
#include "tests/device/fake_device.h"

// Staged calls on ranks, one of whose devices fails at any point: all ranks end
// with an error, none hangs, and no buffer is used after that.
namespace gradientflow::testing {
namespace {

constexpr std::size_t kCount = 5003;

struct Outcome {
  Status status;
  bool planned = false;  // The planned failure occurred.
};

// Rank 1's device fails according to `plan`; each rank starts three calls.
std::vector<Outcome> RunWith(bool memory,
                             const std::function<void(FakeDevice&)>& plan,
                             const std::function<bool(FakeDevice&)>& happened) {
  std::vector<Outcome> outcomes(3);
  OnRanks({3, memory}, [&](TestRank& host) {
    DeviceRank rank(host);
    const std::vector<std::byte> bytes =
        Encode(DType::kFloat16, Contribution(host.rank(), kCount, 1));
    std::vector<DeviceMemory> memories;
    for (int i = 0; i < 3; ++i) memories.push_back(rank.Upload(bytes));
    EXPECT_TRUE(rank.work().Synchronize().ok());
    if (host.rank() == 1) plan(rank.device());
    std::vector<Ending> endings(3);
    for (std::size_t i = 0; i < 3; ++i) {
      CollectiveCall call;
      call.output = memories[i].get();
      call.count = kCount;
      call.dtype = DType::kFloat16;
      call.wire = DType::kFloat32;
      call.channel = i == 2 ? Channel::kPlain : Channel::kGradients;
      call.step = 31;
      call.bucket = i + 1;
      rank.staged().Start(call, endings[i].done());
    }
    rank.Drive([&] {
      return endings[0].over() && endings[1].over() && endings[2].over();
    });
    EXPECT_EQ(rank.staged().in_flight(), 0);
    Outcome& outcome = outcomes[host.rank()];
    for (const Ending& ending : endings) {
      EXPECT_EQ(ending.times, 1);
      if (outcome.status.ok()) outcome.status = ending.status;
    }
    outcome.planned = host.rank() != 1 || happened(rank.device());
    // The memory is freed before the device's streams end, so that the
    // sanitizers detect streams that still use it.
    memories.clear();
    for (int i = 0; i < 20; ++i) {
      rank.staged().Poll();
      host.Poll();
    }
  });
  return outcomes;
}

// Rank 1 has failed; and so have the others, unless the failure was so late
// that they had finished.
void ExpectFailed(const std::vector<Outcome>& outcomes, bool early,
                  const std::string& what) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (r != 1 && !early && outcomes[r].status.ok()) continue;
    const std::string text = outcomes[r].status.ToString();
    EXPECT_FALSE(outcomes[r].status.ok()) << what << ", rank " << r;
    EXPECT_NE(text.find("fake:0"), std::string::npos) << what << ": " << text;
    EXPECT_NE(text.find("step 31 bucket "), std::string::npos)
        << what << ": " << text;
    EXPECT_NE(text.find("on purpose"), std::string::npos)
        << what << ": " << text;
    EXPECT_NE(text.find("rank 1, "), std::string::npos) << what << ": " << text;
  }
}

TEST(StagedFailures, OfACallToTheDeviceEndOnAllRanks) {
  const Status why(StatusCode::kInternal, "failed on purpose");
  struct Kind {
    FakeCall call;
    const char* name;
  };
  const Kind kinds[] = {{FakeCall::kCopy, "copy"},
                        {FakeCall::kRecord, "record"},
                        {FakeCall::kWait, "wait"},
                        {FakeCall::kFill, "fill"}};
  for (bool memory : {true, false}) {
    for (const Kind& kind : kinds) {
      int failed = 0;
      for (std::uint64_t nth : {0, 1, 2, 5, 11, 1000}) {
        std::uint64_t before = 0;
        const std::vector<Outcome> outcomes = RunWith(
            memory,
            [&](FakeDevice& device) {
              before = device.count(kind.call);
              device.FailCall(kind.call, nth, why);
            },
            [&](FakeDevice& device) {
              return device.count(kind.call) > before + nth;
            });
        const std::string what = StrCat(kind.name, " ", nth);
        if (outcomes[1].planned) {
          ++failed;
          const bool early = nth == 0 && kind.call != FakeCall::kFill;
          ExpectFailed(outcomes, early, what);
        } else {
          EXPECT_TRUE(outcomes[0].status.ok() && outcomes[1].status.ok() &&
                      outcomes[2].status.ok())
              << what;
        }
        if (HasFailure()) return;
      }
      EXPECT_GE(failed, 3) << kind.name;
      EXPECT_LE(failed, 5) << kind.name;
    }
  }
}

TEST(StagedFailures, OfAKernelThatIsNotLaunchedNameTheError) {
  const std::vector<Outcome> outcomes = RunWith(
      true,
      [](FakeDevice& device) {
        device.FailCall(FakeCall::kLaunch, 3,
                        Status(StatusCode::kInternal, "not seen"));
      },
      [](FakeDevice&) { return true; });
  for (const Outcome& outcome : outcomes) {
    // The error of the first call, without which no rank can finish.
    EXPECT_NE(outcome.status.message().find(StrCat(kFakeLaunchError)),
              std::string::npos)
        << outcome.status.ToString();
  }
}

TEST(StagedFailures, OfWorkOnTheDeviceEndOnAllRanks) {
  const Status why(StatusCode::kInternal, "broken on purpose");
  for (bool memory : {true, false}) {
    for (std::uint64_t nth : {0, 1, 4, 9, 17, 26}) {
      const std::vector<Outcome> outcomes = RunWith(
          memory, [&](FakeDevice& device) { device.FailWork(nth, why); },
          [](FakeDevice&) { return true; });
      ExpectFailed(outcomes, nth == 0, StrCat("work ", nth));
      if (HasFailure()) return;
    }
  }
}

// The device was asked in vain whether it has done a copy, which may still use
// the memory of the call.
TEST(StagedFailures, OfAQuestionLeaveTheCallUntilTheWorkIsDone) {
  for (const FakeCall call : {FakeCall::kRecord, FakeCall::kQuery}) {
    // The first record is the one that the copies wait for.
    const std::uint64_t nth = call == FakeCall::kRecord ? 1 : 0;
    OnRanks({2, true}, [&](TestRank& host) {
      DeviceRank rank(host);
      const std::vector<std::byte> bytes =
          Encode(DType::kFloat32, Contribution(host.rank(), kCount, 1));
      const DeviceMemory pool = rank.Upload(bytes);
      EXPECT_TRUE(rank.work().Synchronize().ok());
      const bool troubled = host.rank() == 1;
      if (troubled) {
        rank.device().HoldStreams();
        rank.device().FailCall(
            call, nth, Status(StatusCode::kInternal, "failed on purpose"));
      }
      CollectiveCall sum;
      sum.output = pool.get();
      sum.count = kCount;
      Ending ending;
      rank.staged().Start(sum, ending.done());
      if (troubled) {
        rank.Drive([&] { return !host.fabric().status().ok(); });
        for (int i = 0; i < 1000; ++i) {
          rank.staged().Poll();
          host.Poll();
          ASSERT_FALSE(ending.over());
        }
        rank.device().ReleaseStreams();
      }
      rank.Drive([&] { return ending.over(); });
      EXPECT_NE(ending.status.message().find("failed on purpose"),
                std::string::npos)
          << ending.status.ToString();
    });
    if (HasFailure()) FAIL() << static_cast<int>(call);
  }
}

TEST(StagedFailures, OfAPeerEndWithoutTheDevicesHelp) {
  for (bool memory : {true, false}) {
    OnRanks({3, memory}, [&](TestRank& host) {
      DeviceRank rank(host);
      const std::vector<std::byte> bytes =
          Encode(DType::kFloat32, Contribution(host.rank(), kCount, 1));
      const DeviceMemory pool = rank.Upload(bytes);
      CollectiveCall call;
      call.output = pool.get();
      call.count = kCount;
      Ending ending;
      if (host.rank() == 2) {
        host.fabric().Fail(Status(StatusCode::kAborted, "rank 2 has enough"));
      }
      rank.staged().Start(call, ending.done());
      rank.Drive([&] { return ending.over(); });
      EXPECT_EQ(ending.status.code(), StatusCode::kAborted);
      EXPECT_EQ(rank.staged().in_flight(), 0);
      EXPECT_EQ(rank.device().count(FakeCall::kSynchronize), 0);
      EXPECT_TRUE(rank.work().Synchronize().ok());  // The test's own.
    });
  }
}

}  // namespace
}  // namespace gradientflow::testing
