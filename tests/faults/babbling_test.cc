#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/faults/scenario.h"
#include "tests/faults/strangers.h"
#include "transports/shm/shm_arena.h"

// A peer that has joined properly, and then sends garbage.
namespace gradientflow::faults {
namespace {

TEST(BabblingRank, OnItsTcpConnectionsIsDataLossAndNamed) {
  const Folder folder;
  JobConfig job;
  job.options.rendezvous = folder.url();
  job.options.join_timeout_seconds = 20;
  Scenario ranks(3, [&](int rank, Board& board) -> Status {
    auto session = GradientSession::Open(OptionsOf(job, rank), TensorsOf(job));
    if (!session.ok()) return session.status();
    GF_RETURN_IF_ERROR(TrainStep(job, 0, session.value().get(), &board[rank]));
    if (rank == 1 && BabbleOnAllConnections() == 0) {
      return Status(StatusCode::kInternal, "found no connection");
    }
    return TrainStep(job, 1, session.value().get(), &board[rank]);
  });
  for (int r : {0, 2}) {
    ranks.ExpectError(r, 30, StatusCode::kDataLoss,
                      {"step ", "rank 1 (127.0.0.1:"});
  }
  ASSERT_TRUE(ranks.EndsWithin(1, 10));
  EXPECT_NE(ranks[1].code.load(), StatusCode::kOk);
}

TEST(BabblingRank, InSharedMemoryIsDataLossAndNamed) {
  const Folder folder;
  JobConfig job;
  job.ranks = 2;
  job.fabric = "shm";
  job.options.rendezvous = folder.url();
  job.options.join_timeout_seconds = 20;
  Scenario ranks(2, [&](int rank, Board& board) -> Status {
    auto session = GradientSession::Open(OptionsOf(job, rank), TensorsOf(job));
    if (!session.ok()) return session.status();
    GF_RETURN_IF_ERROR(TrainStep(job, 0, session.value().get(), &board[rank]));
    if (rank == 1) {
      if (BreakPeersFifos(session.value()->pool().data, kHeapOffset) == 0) {
        return Status(StatusCode::kInternal, "found no arena");
      }
      // The other rank should notice before this rank's step is done.
      Eventually([&] { return board[0].ended_ns.load() != 0; }, 10);
    }
    return TrainStep(job, 1, session.value().get(), &board[rank]);
  });
  ranks.ExpectError(0, 30, StatusCode::kDataLoss, {"step ", "rank 1 (pid "});
  ASSERT_TRUE(ranks.EndsWithin(1, 10));
  EXPECT_NE(ranks[1].code.load(), StatusCode::kOk);
}

}  // namespace
}  // namespace gradientflow::faults
