#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/communicator/sums.h"
#include "tests/session/steps.h"

// What else a session does: collectives and messages on plain buffers, also
// during a step.
namespace gradientflow::testing {
namespace {

class CallsInSteps : public Steps {};

double SumOver(const GradientSession& session, double step) {
  const double n = session.size();
  return n * (n - 1) / 2 + n * step;
}

TEST_P(CallsInSteps, LetPlainCollectivesRunBetweenAnyTwoHooks) {
  Job job = MakeJob();
  job.options.bucket_bytes = 0;
  job.options.segments_in_flight = 1;
  RunRanks(job, [](GradientSession& session) {
    for (int step = 0; step < 8; ++step) {
      // Each rank calls at another point of its backward.
      const std::size_t before =
          (static_cast<std::size_t>(session.rank()) * 5 + step) %
          session.tensors();
      for (std::size_t i = session.tensors(); i-- > 0;) {
        Produce(session, i, step);
        if (i != before) continue;
        std::vector<double> data = Filled(7001, session.rank() + step);
        ASSERT_TRUE(session.communicator().Run(Sum(&data)).ok());
        EXPECT_EQ(data, Filled(7001, SumOver(session, step)));
      }
      FinishAndCheck(session, step);
    }
  });
}

TEST_P(CallsInSteps, LetAnotherThreadCallCollectivesMeanwhile) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    std::thread other([&] {
      for (int round = 0; round < 40; ++round) {
        std::vector<double> data = Filled(100 + round, session.rank() + round);
        ASSERT_TRUE(session.communicator().Run(Sum(&data)).ok());
        EXPECT_EQ(data, Filled(100 + round, SumOver(session, round)));
      }
    });
    for (int step = 0; step < 20; ++step) {
      ProduceAll(session, step);
      FinishAndCheck(session, step);
    }
    other.join();
  });
}

TEST_P(CallsInSteps, EndOnAllRanksAfterAnAbort) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    if (session.rank() == 1) {
      session.communicator().Abort(
          Status(StatusCode::kAborted, "the disk is full"));
    }
    ProduceAll(session, 0);
    const Status status = session.FinishStep().status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("the disk is full"), std::string::npos)
        << status.message();
  });
}

GF_INSTANTIATE_STEPS(CallsInSteps);

TEST(Sessions, SeveralInOneProcessDoNotMeet) {
  Job job;
  job.size = 2;
  job.tensors = SomeTensors();
  RunRanks(job, [](GradientSession& outer) {
    Job other;
    other.size = 3;
    other.over = Over::kTcp;
    other.tensors = {{"only", 77}};
    for (int step = 0; step < 2; ++step) {
      ProduceAll(outer, step);
      RunRanks(other, [](GradientSession& inner) {
        for (int inner_step = 0; inner_step < 2; ++inner_step) {
          ProduceAll(inner, inner_step);
          FinishAndCheck(inner, inner_step);
        }
      });
      FinishAndCheck(outer, step);
    }
  });
}

TEST(Sessions, OfOneRankNeedNobody) {
  Options options = Job::TestOptions();
  options.loss_scale = 2.0F;
  Opened opened = GradientSession::Open(options, SomeTensors());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  GradientSession& session = *opened.value();
  for (int step = 0; step < 3; ++step) {
    ProduceAll(session, step, 2.0F);
    FinishAndCheck(session, step);
  }
  std::vector<double> data = Filled(3, 1.5);
  ASSERT_TRUE(session.communicator().Run(Sum(&data)).ok());
  EXPECT_EQ(data, Filled(3, 1.5));
}

TEST(Sessions, WithoutTensorsRunCollectives) {
  Job job;
  job.size = 3;
  RunRanks(job, [](GradientSession& session) {
    std::vector<double> data = Filled(3, session.rank());
    ASSERT_TRUE(session.communicator().Run(Sum(&data)).ok());
    EXPECT_EQ(data, Filled(3, 3));
    EXPECT_TRUE(session.FinishStep().ok());
  });
}

}  // namespace
}  // namespace gradientflow::testing
