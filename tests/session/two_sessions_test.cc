#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gradientflow/communicator/inproc.h"
#include "tests/session/steps.h"
#include "transports/inproc/create.h"

// Several sessions in one process.
namespace gradientflow::testing {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 22;

std::shared_ptr<InprocGroup> NewGroup() {
  ShmOptions shm;
  shm.arena_bytes = std::size_t{64} << 20;
  return InprocGroup::Create(kRanks, shm).value();
}

std::unique_ptr<GradientSession> Open(const std::shared_ptr<InprocGroup>& group,
                                      int rank, float sparsity) {
  Options options = Job::TestOptions();
  options.rank = rank;
  options.bucket_bytes = kAutoBytes;
  options.sparsity = sparsity;
  options.chunk_elements = 100;
  options.timeout_seconds = 10;  // For ranks that wait for each other.
  const auto comm = OpenInProcess(group, options);
  EXPECT_TRUE(comm.ok()) << comm.status().ToString();
  auto session = GradientSession::Open(comm.value(), SomeTensors(), options);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return std::move(session).value();
}

// theta of every step, on every rank, for both sessions.
using Thetas = std::vector<std::vector<std::uint64_t>>;

void Finish(GradientSession& session, int step, bool dense,
            std::vector<std::uint64_t>* thetas) {
  const Result<StepStats> stats = session.FinishStep();
  ASSERT_TRUE(stats.ok()) << stats.status().ToString();
  thetas->push_back(stats.value().bucket_bytes);
  if (!dense) return;
  for (const std::size_t i : AllTensors(session)) {
    ExpectMean(session, i, step, [](int) { return true; });
  }
}

TEST(TwoSessions, AreFinishedInAnyOrderWhileTheyTune) {
  for (const float sparsity : {0.0F, 0.5F}) {
    const auto first = NewGroup();
    const auto second = NewGroup();
    Thetas of_first(kRanks);
    Thetas of_second(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto one = Open(first, rank, sparsity);
        const auto two = Open(second, rank, 0.0F);
        const std::vector<std::byte> fresh = one->SaveState().value();
        for (int step = 0; step < kSteps; ++step) {
          ProduceAll(*one, step);
          ProduceAll(*two, step);
          if ((rank + step) % 2 == 0) {
            Finish(*one, step, sparsity == 0, &of_first[rank]);
            Finish(*two, step, true, &of_second[rank]);
          } else {
            Finish(*two, step, true, &of_second[rank]);
            Finish(*one, step, sparsity == 0, &of_first[rank]);
          }
          if (::testing::Test::HasFailure()) return;
          if (step == 7) {
            ASSERT_TRUE(one->RestoreState(fresh).ok());
          }
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (int rank = 1; rank < kRanks; ++rank) {
      EXPECT_EQ(of_first[rank], of_first[0]) << rank;
      EXPECT_EQ(of_second[rank], of_second[0]) << rank;
    }
  }
}

// A step after which none follows waits for no answer.
TEST(TwoSessions, MayBeClosedAfterAnyStep) {
  for (int steps = 1; steps < 8; ++steps) {
    const auto group = NewGroup();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto session = Open(group, rank, 0.0F);
        for (int step = 0; step < steps; ++step) {
          ProduceAll(*session, step);
          FinishAndCheck(*session, step);
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

}  // namespace
}  // namespace gradientflow::testing
