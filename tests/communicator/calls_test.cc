#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/communicator/ranks.h"
#include "tests/communicator/sums.h"

// Calls, messages and shared memory of a communicator.
namespace gradientflow::testing {
namespace {

double SumOver(const Communicator& comm, double value) {
  const double n = comm.size();
  return n * (n - 1) / 2 + n * value;
}

class Calls : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static CommJob MakeJob() {
    CommJob job;
    std::tie(job.over, job.size) = GetParam();
    return job;
  }
};

TEST_P(Calls, StartSeveralAndWaitInAnyOrder) {
  const CommJob job = MakeJob();
  RunRanks(job, [](Communicator& comm) {
    std::vector<std::vector<double>> data;
    std::vector<std::uint64_t> tickets;
    for (int i = 0; i < 12; ++i) data.push_back(Filled(500 * i, i));
    for (auto& buffer : data) {
      Result<std::uint64_t> ticket = comm.Start(Sum(&buffer));
      ASSERT_TRUE(ticket.ok());
      tickets.push_back(ticket.value());
    }
    for (int i = 11; i >= 0; --i) {
      ASSERT_TRUE(comm.Wait(tickets[i]).ok());
      EXPECT_EQ(data[i], Filled(500 * i, i * comm.size()));
    }
    EXPECT_EQ(comm.Wait(tickets[3]).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(comm.Wait(987654).code(), StatusCode::kInvalidArgument);
  });
}

TEST_P(Calls, SendAndReceiveInBothDirections) {
  const CommJob job = MakeJob();
  RunRanks(job, [](Communicator& comm) {
    const int right = (comm.rank() + 1) % comm.size();
    const int left = (comm.rank() + comm.size() - 1) % comm.size();
    for (std::size_t bytes : {0, 1, 3, 4097, 65537, 1000003}) {
      std::vector<char> out(bytes, static_cast<char>('a' + comm.rank()));
      std::vector<char> in(bytes, '?');
      std::thread sender(
          [&] { EXPECT_TRUE(comm.Send(right, 5, out.data(), bytes).ok()); });
      EXPECT_TRUE(comm.Recv(left, 5, in.data(), bytes).ok());
      sender.join();
      EXPECT_EQ(in, std::vector<char>(bytes, static_cast<char>('a' + left)));
    }
  });
}

TEST_P(Calls, MatchMessagesByTagInOrder) {
  const CommJob job = MakeJob();
  RunRanks(job, [](Communicator& comm) {
    if (comm.rank() == 0) {
      for (int i = 0; i < 10; ++i) {
        const int value[2] = {i, 100 + i};
        ASSERT_TRUE(comm.Send(1, 7, &value[0], sizeof(int)).ok());
        ASSERT_TRUE(comm.Send(1, 0xFFFFFFFF, &value[1], sizeof(int)).ok());
      }
    } else if (comm.rank() == 1) {
      for (int base : {100, 0}) {
        for (int i = 0; i < 10; ++i) {
          int seen = -1;
          ASSERT_TRUE(
              comm.Recv(0, base == 0 ? 7 : 0xFFFFFFFF, &seen, sizeof(seen))
                  .ok());
          EXPECT_EQ(seen, base + i);
        }
      }
    }
  });
}

TEST_P(Calls, TellTheReceiverOfAnotherLengthAndGoOn) {
  const CommJob job = MakeJob();
  RunRanks(job, [](Communicator& comm) {
    char buffer[16] = "fifteen bytes!!";
    if (comm.rank() == 0) {
      ASSERT_TRUE(comm.Send(1, 1, buffer, 16).ok());
      ASSERT_TRUE(comm.Send(1, 1, buffer, 16).ok());
      EXPECT_EQ(comm.Send(0, 1, buffer, 1).code(),
                StatusCode::kInvalidArgument);
      EXPECT_EQ(comm.Send(99, 1, buffer, 1).code(),
                StatusCode::kInvalidArgument);
    } else if (comm.rank() == 1) {
      char seen[16] = {};
      const Status status = comm.Recv(0, 1, seen, 15);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("16"), std::string::npos);
      EXPECT_NE(status.message().find("15"), std::string::npos);
      ASSERT_TRUE(comm.Recv(0, 1, seen, 16).ok());
      EXPECT_STREQ(seen, buffer);
    }
    std::vector<double> data = Filled(3, comm.rank());
    ASSERT_TRUE(comm.Run(Sum(&data)).ok());
    EXPECT_EQ(data, Filled(3, SumOver(comm, 0)));
  });
}

TEST_P(Calls, ReduceInSharedMemoryThatTheCommunicatorGave) {
  const CommJob job = MakeJob();
  RunRanks(job, [](Communicator& comm) {
    Result<BufferView> view = comm.AllocateShared(5000 * sizeof(double));
    ASSERT_TRUE(view.ok());
    auto* data = reinterpret_cast<double*>(view.value().data);
    for (int i = 0; i < 5000; ++i) {
      ASSERT_EQ(data[i], 0.0);
      data[i] = i + comm.rank();
    }
    CollectiveCall call;
    call.output = data;
    call.count = 5000;
    call.dtype = call.wire = DType::kFloat64;
    ASSERT_TRUE(comm.Run(call).ok());
    for (int i = 0; i < 5000; ++i) {
      ASSERT_EQ(data[i], SumOver(comm, i));
    }
    comm.FreeShared(view.value());
  });
}

TEST_P(Calls, AbortEndsAllRanksWithTheReason) {
  const CommJob job = MakeJob();
  RunRanks(job, [](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.Abort(Status(StatusCode::kAborted, "the disk is full"));
    }
    std::vector<double> data = Filled(10, 1);
    const Status status = comm.Run(Sum(&data));
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("the disk is full"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos);
    EXPECT_FALSE(comm.Run(Sum(&data)).ok());
  });
}

TEST_P(Calls, WaitForAStartedCallForAWhile) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    constexpr std::uint64_t kAll = ~std::uint64_t{0};
    EXPECT_EQ(comm.Wait(1, 0).code(), StatusCode::kInvalidArgument);
    std::vector<double> data = Filled(11, comm.rank());
    char byte = 0;
    // Rank 0 starts last.
    if (comm.rank() == 0) {
      for (int r = 1; r < comm.size(); ++r) {
        ASSERT_TRUE(comm.Recv(r, 1, &byte, 1).ok());
      }
    }
    const std::uint64_t ticket = comm.Start(Sum(&data)).value();
    if (comm.rank() > 0) {
      EXPECT_EQ(comm.Wait(ticket, 0.01).code(), StatusCode::kDeadlineExceeded);
      ASSERT_TRUE(comm.Send(0, 1, &byte, 1).ok());
    }
    EXPECT_TRUE(comm.Wait(ticket, 30).ok());
    EXPECT_EQ(data, Filled(11, SumOver(comm, 0)));
    // An invalid call was not started, and has no ticket.
    CollectiveCall wrong = Sum(&data);
    wrong.root = wrong.group = 77;
    EXPECT_EQ(comm.Start(wrong).status().code(), StatusCode::kInvalidArgument);
    for (const std::uint64_t spent : {ticket, std::uint64_t{0}, kAll}) {
      for (const double seconds : {0.0, -1.0, Communicator::kForever}) {
        EXPECT_EQ(comm.Wait(spent, seconds).code(),
                  StatusCode::kInvalidArgument);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    InProcess, Calls,
    ::testing::Combine(::testing::Values(Over::kMemory, Over::kMessages,
                                         Over::kDevices, Over::kSomeDevices,
                                         Over::kNccl),
                       ::testing::Values(2, 3)),
    ParamName);
INSTANTIATE_TEST_SUITE_P(Joined, Calls,
                         ::testing::Values(std::tuple{Over::kTcp, 2},
                                           std::tuple{Over::kMixed, 3}),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
