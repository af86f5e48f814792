#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/session/steps.h"
#include "transports/rdma/verbs_api.h"

// Jobs over RDMA whose cards fail: all ranks end with one error that names the
// culprit, or do without RDMA where they can.
namespace gradientflow::testing {
namespace {

constexpr int kRanks = 3;

class RdmaJob : public ::testing::Test {
 protected:
  RdmaJob() {
    FakeHost host;
    for (int r = 0; r < kRanks; ++r) {
      host.devices.push_back(UsualHost(r).devices.front());
    }
    fake_.AddHost(host);
    ReplaceVerbs(fake_.api(0));
    job_.size = kRanks;
    job_.over = Over::kTcp;
    job_.tensors = SomeTensors();
    // Nothing here is found out by this time-out.
    job_.options.heartbeat_timeout_seconds = 60;
  }
  ~RdmaJob() override { ReplaceVerbs(nullptr); }

  void Use(const std::string& fabric) {
    job_.adapt = [fabric](int rank, Options* options, auto*) {
      options->fabric = fabric;
      options->transport_settings["rdma_devices"] = StrCat("=fake", rank, ":1");
      // Ranks of other hosts, for shared memory.
      options->host_id = StrCat("host", rank);
    };
  }

  // Runs steps until `happen` has ended them, in the middle of one.
  void ExpectEnd(const std::function<void(FakeVerbs*)>& happen,
                 const std::vector<std::string>& names) {
    std::atomic<int> ended{0};
    RunRanks(job_, [&](GradientSession& session) {
      Status status;
      for (int step = 0; status.ok() && step < 100000; ++step) {
        ProduceAll(session, step);
        if (step == 5 && session.rank() == 1) happen(&fake_);
        status = session.FinishStep().status();
      }
      EXPECT_FALSE(status.ok());
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
      for (const std::string& name : names) {
        EXPECT_NE(status.message().find(name), std::string::npos)
            << "rank " << session.rank() << ": " << status.ToString();
      }
      ++ended;
    });
    EXPECT_EQ(ended, kRanks);
  }

  FakeVerbs fake_{0};
  Job job_;
};

TEST_F(RdmaJob, ACardThatIsRemovedIsNamedOnAllRanks) {
  Use("rdma");
  ExpectEnd([](FakeVerbs* fake) { fake->RemoveDevice("fake1"); },
            {"rank 1", "fake1:1"});
}

TEST_F(RdmaJob, APortThatGoesDownIsNamedOnAllRanks) {
  Use("rdma");
  ExpectEnd([](FakeVerbs* fake) { fake->SetPort("fake1", 1, false); },
            {"rank 1", "fake1:1", "port error"});
}

TEST_F(RdmaJob, ACableThatIsCutIsNamedOnAllRanks) {
  job_.options.transport_settings["rdma_retry_seconds"] = "0.05";
  Use("rdma");
  ExpectEnd([](FakeVerbs* fake) { fake->SetCable("fake0", "fake1", false); },
            {"RDMA of rank ", "rank 0", "rank 1",
             "transport retry counter exceeded"});
}

TEST_F(RdmaJob, ARankWithoutRdmaIsReachedByTcp) {
  Use("auto");
  fake_.SetPort("fake1", 1, false);
  job_.options.log_level = LogLevel::kInfo;
  ::testing::internal::CaptureStderr();
  RunRanks(job_, [&](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      ProduceAll(session, step);
      FinishAndCheck(session, step);
    }
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("going on without rdma links: no RDMA port can be used"),
            std::string::npos)
      << log;
  EXPECT_NE(log.find("fake1:1 is down"), std::string::npos) << log;
  // The other two use theirs.
  EXPECT_GT(fake_.stats(0).writes_with_imm, 2U);
}

TEST_F(RdmaJob, APairWithoutACableIsLinkedByTcp) {
  Use("auto");
  fake_.SetCable("fake0", "fake1", false);
  job_.options.transport_settings["rdma_retry_seconds"] = "0.05";
  job_.options.log_level = LogLevel::kInfo;
  ::testing::internal::CaptureStderr();
  RunRanks(job_, [&](GradientSession& session) {
    for (int step = 0; step < 3; ++step) {
      ProduceAll(session, step);
      FinishAndCheck(session, step);
    }
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* part :
       {"going on by tcp with rank(s) 1: ", "going on by tcp with rank(s) 0: ",
        "transport retry counter exceeded", "10.9.0.1, MTU 1024",
        "check that they are on one network"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << " in " << log;
  }
  EXPECT_GT(fake_.stats(0).writes_with_imm, 2U);
}

}  // namespace
}  // namespace gradientflow::testing
