#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/secret.h"
#include "tests/transports/rendezvous_ranks.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow {
namespace {

namespace fs = std::filesystem;
using rendezvous::FrameType;
using rendezvous_test::Cards;
using rendezvous_test::ConnectWithPatience;
using rendezvous_test::FreeAddress;
using rendezvous_test::Meet;
using rendezvous_test::OptionsFor;
using rendezvous_test::Says;
using std::chrono::seconds;

// A rank in a process of its own, which joins when it is told to.
class Victim {
 public:
  explicit Victim(const std::function<void()>& join) {
    EXPECT_EQ(::pipe(pipe_), 0);
    pid_ = ::fork();
    if (pid_ != 0) return;
    char word = 0;
    if (::read(pipe_[0], &word, 1) == 1) join();
    ::_exit(0);
  }
  ~Victim() {
    Kill();
    ::close(pipe_[0]);
    ::close(pipe_[1]);
  }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  void Join() { EXPECT_EQ(::write(pipe_[1], "j", 1), 1); }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  // Waits for the end of the process.
  int ExitCode() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
};

class Deaths : public testing::TestWithParam<int> {
 protected:
  Deaths() : directory_(fs::path(testing::TempDir()) / "deaths") {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
  }
  ~Deaths() override { fs::remove_all(directory_); }
  bool HasJoined(int rank) const {
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (entry.path().string().ends_with(".join." + std::to_string(rank))) {
        return true;
      }
    }
    return false;
  }
  const fs::path directory_;
};

TEST_P(Deaths, AmongFilesAreSeenAtOnceAndNamed) {
  const auto rank = [&](int r) {
    return OptionsFor("file://" + directory_.string(), r, 3, seconds(60));
  };
  Victim victim([&] { static_cast<void>(Meet({rank(GetParam())})); });
  const int other = GetParam() == 0 ? 1 : 0;
  std::vector<Cards> results;
  std::thread survivor([&] { results = Meet({rank(other)}); });
  while (!HasJoined(other)) std::this_thread::yield();
  victim.Join();
  while (!HasJoined(GetParam())) std::this_thread::yield();
  const std::string named = "rank " + std::to_string(GetParam()) +
                            " (process " + std::to_string(victim.pid()) +
                            " on ";
  victim.Kill();
  const SteadyClock clock;
  const Clock::Time died = clock.Now();
  survivor.join();
  EXPECT_LT(Seconds(clock.Now() - died), 1);
  EXPECT_EQ(results[0].status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Says(results[0], named) && Says(results[0], "ended during"))
      << results[0].status().ToString();
}

// While rank 0 is stopped, rank 1 loses its patience, and comes again: rank 0
// sees the join, the card and the end of the first connection at once.
TEST(Pause, OfRankZeroIsNoReasonToTakeTheOthersForDead) {
  const std::string address = FreeAddress();
  Victim zero([&] {
    const auto met = Meet({OptionsFor(address, 0, 2, seconds(30))});
    ::_exit(met[0].ok() ? 7 : 1);
  });
  zero.Join();
  {
    rendezvous::FrameStream stream(ConnectWithPatience(address), 1 << 10);
    rendezvous::Frame frame;
    while (stream.Read(&frame) == rendezvous::FrameStream::State::kWaiting) {
      pollfd ready = {stream.fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, 5000), 1);
    }
    ASSERT_EQ(frame.type, FrameType::kChallenge);
    ::kill(zero.pid(), SIGSTOP);
    ASSERT_EQ(::waitpid(zero.pid(), nullptr, WUNTRACED), zero.pid());
    rendezvous::Join join{1, 2, RandomBits().value(), {}};
    join.proof =
        rendezvous::ProofOf(FrameType::kJoin, JobSecret("secret", ""),
                            rendezvous::BodyReader(frame.body).Bits(), join);
    stream.Queue(
        rendezvous::MakeFrame(FrameType::kJoin, rendezvous::EncodeJoin(join)));
    stream.Queue(rendezvous::MakeFrame(FrameType::kCard, "a card"));
    ASSERT_TRUE(stream.Flush());
  }
  ::kill(zero.pid(), SIGCONT);
  const auto again = Meet({OptionsFor(address, 1, 2, seconds(30))});
  EXPECT_TRUE(again[0].ok()) << again[0].status().ToString();
  EXPECT_EQ(zero.ExitCode(), 7);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Deaths, testing::Values(0, 2));

}  // namespace
}  // namespace gradientflow
