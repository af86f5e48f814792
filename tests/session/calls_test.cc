#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/session/steps.h"

// What else a session does: collectives and messages on plain buffers, also
// during a step.
namespace gradientflow::testing {
namespace {

CollectiveCall Sum(std::vector<double>* data) {
  CollectiveCall call;
  call.output = data->data();
  call.count = data->size();
  call.dtype = call.wire = DType::kFloat64;
  return call;
}

std::vector<double> Filled(std::size_t count, double value) {
  return std::vector<double>(count, value);
}

double SumOver(const GradientSession& session, double step) {
  const double n = session.size();
  return n * (n - 1) / 2 + n * step;
}

TEST_P(Steps, LetPlainCollectivesRunBetweenAnyTwoHooks) {
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

TEST_P(Steps, LetAnotherThreadCallCollectivesMeanwhile) {
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

TEST_P(Steps, StartSeveralAndWaitInAnyOrder) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    std::vector<std::vector<double>> data;
    std::vector<std::uint64_t> tickets;
    for (int i = 0; i < 12; ++i) data.push_back(Filled(500 * i, i));
    for (auto& buffer : data) {
      Result<std::uint64_t> ticket = session.communicator().Start(Sum(&buffer));
      ASSERT_TRUE(ticket.ok());
      tickets.push_back(ticket.value());
    }
    for (int i = 11; i >= 0; --i) {
      ASSERT_TRUE(session.communicator().Wait(tickets[i]).ok());
      EXPECT_EQ(data[i], Filled(500 * i, i * session.size()));
    }
    EXPECT_EQ(session.communicator().Wait(tickets[3]).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(session.communicator().Wait(987654).code(),
              StatusCode::kInvalidArgument);
  });
}

TEST_P(Steps, SendAndReceiveInBothDirections) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    const int right = (session.rank() + 1) % session.size();
    const int left = (session.rank() + session.size() - 1) % session.size();
    for (std::size_t bytes : {0, 1, 3, 4097, 65537, 1000003}) {
      std::vector<char> out(bytes, static_cast<char>('a' + session.rank()));
      std::vector<char> in(bytes, '?');
      std::thread sender([&] {
        EXPECT_TRUE(
            session.communicator().Send(right, 5, out.data(), bytes).ok());
      });
      EXPECT_TRUE(session.communicator().Recv(left, 5, in.data(), bytes).ok());
      sender.join();
      EXPECT_EQ(in, std::vector<char>(bytes, static_cast<char>('a' + left)));
    }
  });
}

TEST_P(Steps, MatchMessagesByTagInOrder) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    if (session.rank() == 0) {
      for (int i = 0; i < 10; ++i) {
        const int value[2] = {i, 100 + i};
        ASSERT_TRUE(
            session.communicator().Send(1, 7, &value[0], sizeof(int)).ok());
        ASSERT_TRUE(session.communicator()
                        .Send(1, 0xFFFFFFFF, &value[1], sizeof(int))
                        .ok());
      }
    } else if (session.rank() == 1) {
      for (int base : {100, 0}) {
        for (int i = 0; i < 10; ++i) {
          int seen = -1;
          ASSERT_TRUE(
              session.communicator()
                  .Recv(0, base == 0 ? 7 : 0xFFFFFFFF, &seen, sizeof(seen))
                  .ok());
          EXPECT_EQ(seen, base + i);
        }
      }
    }
  });
}

TEST_P(Steps, TellTheReceiverOfAnotherLengthAndGoOn) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    char buffer[16] = "fifteen bytes!!";
    if (session.rank() == 0) {
      ASSERT_TRUE(session.communicator().Send(1, 1, buffer, 16).ok());
      ASSERT_TRUE(session.communicator().Send(1, 1, buffer, 16).ok());
      EXPECT_EQ(session.communicator().Send(0, 1, buffer, 1).code(),
                StatusCode::kInvalidArgument);
      EXPECT_EQ(session.communicator().Send(99, 1, buffer, 1).code(),
                StatusCode::kInvalidArgument);
    } else if (session.rank() == 1) {
      char seen[16] = {};
      const Status status = session.communicator().Recv(0, 1, seen, 15);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("16"), std::string::npos);
      EXPECT_NE(status.message().find("15"), std::string::npos);
      ASSERT_TRUE(session.communicator().Recv(0, 1, seen, 16).ok());
      EXPECT_STREQ(seen, buffer);
    }
    ProduceAll(session, 0);
    FinishAndCheck(session, 0);
  });
}

TEST_P(Steps, ReduceInSharedMemoryThatTheSessionGave) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    Result<BufferView> view =
        session.communicator().AllocateShared(5000 * sizeof(double));
    ASSERT_TRUE(view.ok());
    auto* data = reinterpret_cast<double*>(view.value().data);
    for (int i = 0; i < 5000; ++i) {
      ASSERT_EQ(data[i], 0.0);
      data[i] = i + session.rank();
    }
    CollectiveCall call;
    call.output = data;
    call.count = 5000;
    call.dtype = call.wire = DType::kFloat64;
    ASSERT_TRUE(session.communicator().Run(call).ok());
    for (int i = 0; i < 5000; ++i) {
      ASSERT_EQ(data[i], SumOver(session, i));
    }
    session.communicator().FreeShared(view.value());
  });
}

TEST_P(Steps, AbortEndsAllRanksWithTheReason) {
  const Job job = MakeJob();
  RunRanks(job, [](GradientSession& session) {
    if (session.rank() == 1) {
      session.communicator().Abort(
          Status(StatusCode::kAborted, "the disk is full"));
    }
    std::vector<double> data = Filled(10, 1);
    const Status status = session.communicator().Run(Sum(&data));
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("the disk is full"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos);
    ProduceAll(session, 0);
    EXPECT_FALSE(session.FinishStep().ok());
  });
}

TEST_P(Steps, WaitForAStartedCallForAWhile) {
  RunRanks(MakeJob(), [](GradientSession& session) {
    constexpr std::uint64_t kAll = ~std::uint64_t{0};
    EXPECT_EQ(session.communicator().Wait(1, 0).code(),
              StatusCode::kInvalidArgument);
    std::vector<double> data = Filled(11, session.rank());
    char byte = 0;
    // Rank 0 starts last.
    if (session.rank() == 0) {
      for (int r = 1; r < session.size(); ++r) {
        ASSERT_TRUE(session.communicator().Recv(r, 1, &byte, 1).ok());
      }
    }
    const std::uint64_t ticket =
        session.communicator().Start(Sum(&data)).value();
    if (session.rank() > 0) {
      EXPECT_EQ(session.communicator().Wait(ticket, 0.01).code(),
                StatusCode::kDeadlineExceeded);
      ASSERT_TRUE(session.communicator().Send(0, 1, &byte, 1).ok());
    }
    EXPECT_TRUE(session.communicator().Wait(ticket, 30).ok());
    EXPECT_EQ(data, Filled(11, SumOver(session, 0)));
    // An invalid call was not started, and has no ticket.
    CollectiveCall wrong = Sum(&data);
    wrong.root = wrong.group = 77;
    EXPECT_EQ(session.communicator().Start(wrong).status().code(),
              StatusCode::kInvalidArgument);
    for (const std::uint64_t spent : {ticket, std::uint64_t{0}, kAll}) {
      for (const double seconds : {0.0, -1.0, Communicator::kForever}) {
        EXPECT_EQ(session.communicator().Wait(spent, seconds).code(),
                  StatusCode::kInvalidArgument);
      }
    }
  });
}

GF_INSTANTIATE_STEPS();

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
