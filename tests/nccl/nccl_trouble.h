#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "gradientflow/base/manual_clock.h"
#include "tests/nccl/nccl_oracle.h"
#include "tests/nccl/nccl_ranks.h"

// What the tests of failures share: a manual clock, and a culprit.
namespace gradientflow::testing {

inline CollectiveCall Bucket(const DeviceMemory& memory, std::size_t count) {
  CollectiveCall call;
  call.output = memory.get();
  call.count = count;
  call.channel = Channel::kGradients;
  call.step = 7;
  call.bucket = 3;
  return call;
}

inline void ExpectSays(const Status& status,
                       const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << status.ToString() << " does not say \"" << word << '"';
  }
}

class NcclFailure : public ::testing::Test {
 protected:
  // Time stands still, unless the body moves it.
  NcclJob Job(int size) {
    NcclJob job;
    job.nccl = &nccl_;
    job.size = size;
    job.lag = FakeLag::kNone;
    job.adjust = [this](int, NcclArgs* args) {
      args->clock = &clock_;
      args->timeout_seconds = 600;
      args->abort_seconds = 1e9;
      args->culprits = [this] { return culprits_; };
    };
    return job;
  }
  // Time passes whenever a rank waits in Create() or the destructor.
  NcclJob JobWhereWaitingTakesTime(int size) {
    NcclJob job = Job(size);
    job.adjust = [this, before = job.adjust](int rank, NcclArgs* args) {
      before(rank, args);
      args->while_waiting = [this] {
        clock_.Advance(std::chrono::seconds(1));
        return Status();
      };
    };
    return job;
  }

  FakeNccl nccl_;
  ManualClock clock_;
  std::string culprits_ = "rank 2 does not answer";
};

inline DeviceMemory Ones(NcclRank& self, std::size_t count) {
  return self.Upload(NcclInput(DType::kFloat32, self.rank, count, 1));
}

}  // namespace gradientflow::testing
