#include "tests/gpu/ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "gtest/gtest.h"

namespace gradientflow::testing {
namespace {

void ExpectNoChildren() {
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(RunRanks, ReturnsWhatEachRankReturned) {
  const auto results = RunRanks(5, [](int rank) -> Result<std::string> {
    // More than a pipe holds.
    return std::string(static_cast<std::size_t>(rank) * 100000, 'x') +
           std::to_string(getpid() != getppid());
  });
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results.value().size(), 5U);
  for (std::size_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(results.value()[rank].size(), rank * 100000 + 1);
  }
  ExpectNoChildren();
}

TEST(RunRanks, ErrorOfOneNamesItAndEndsTheOthers) {
  const auto results = RunRanks(3, [](int rank) -> Result<std::string> {
    if (rank == 1) return Status(StatusCode::kDataLoss, "wrong sum");
    pause();
    return std::string();
  });
  ASSERT_FALSE(results.ok());
  EXPECT_EQ(results.status().message(), "rank 1: DATA_LOSS: wrong sum");
  ExpectNoChildren();
}

TEST(RunRanks, DeathOfOneNamesItAndEndsTheOthers) {
  const auto results = RunRanks(3, [](int rank) -> Result<std::string> {
    if (rank == 2) kill(getpid(), SIGKILL);
    pause();
    return std::string();
  });
  ASSERT_FALSE(results.ok());
  EXPECT_EQ(results.status().message(), "rank 2: killed by signal 9");
  ExpectNoChildren();
}

TEST(RunRanks, SilentExitIsAnError) {
  const auto results =
      RunRanks(1, [](int /*rank*/) -> Result<std::string> { _exit(3); });
  ASSERT_FALSE(results.ok());
  EXPECT_EQ(results.status().message(), "rank 0: exited with code 3");
}

}  // namespace
}  // namespace gradientflow::testing
