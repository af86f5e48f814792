#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/fork.h"
#include "gradientflow/base/secret.h"
#include "tests/transports/no_locks.h"
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
using std::chrono::milliseconds;
using std::chrono::seconds;

// A rank in a process of its own, which joins when it is told to. Elsewhere it
// is in a PID namespace of its own, where the other ranks do not see it.
enum class Where : std::uint8_t { kHere, kElsewhere };
class Victim {
 public:
  explicit Victim(const std::function<void()>& join,
                  Where where = Where::kHere) {
    EXPECT_EQ(::pipe(pipe_), 0);
    pid_ = ::fork();
    if (pid_ != 0) return;
    if (where == Where::kElsewhere) BecomeInit();
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
  // Elsewhere: it neither runs nor ends.
  void Stop() { EXPECT_EQ(::kill(-pid_, SIGSTOP), 0); }
  void GoOn() { EXPECT_EQ(::kill(-pid_, SIGCONT), 0); }
  pid_t pid() const { return pid_; }
  // Waits for the end of the process.
  int ExitCode() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  // Goes on in a child, which ends with this process.
  static void BecomeInit() {
    ::setpgid(0, 0);
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(1);
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      return;
    }
    ::waitpid(child, nullptr, 0);
    ::_exit(0);
  }

  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
};

bool CanHideProcesses() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

class Deaths : public ::testing::TestWithParam<int> {
 protected:
  Deaths() : directory_(fs::path(::testing::TempDir()) / "deaths") {
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
  auto Rank(int rank) const {
    return OptionsFor("file://" + directory_.string(), rank, 3, seconds(60));
  }
  const fs::path directory_;
};

TEST_P(Deaths, AmongFilesAreSeenAtOnceAndNamed) {
  Victim victim([&] { static_cast<void>(Meet({Rank(GetParam())})); });
  const int other = GetParam() == 0 ? 1 : 0;
  std::vector<Cards> results;
  std::thread survivor([&] { results = Meet({Rank(other)}); });
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
  // The third comes when both have gone.
  const Clock::Time came = clock.Now();
  const Cards late = Meet({Rank(2)})[0];
  EXPECT_LT(Seconds(clock.Now() - came), 1);
  EXPECT_EQ(late.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Says(late, named) && Says(late, "gave up before rank 2 joined"))
      << late.status().ToString();
}

// As on two hosts, or in two containers.
class HiddenDeaths : public Deaths {
 protected:
  void SetUp() override {
    if (!CanHideProcesses()) {
      GTEST_SKIP() << "SKIPPED, NOT TESTED: PID namespaces need root";
    }
  }
  // The victim and another rank have joined, and wait for a third. Returns what
  // comes of the other.
  std::future<std::vector<Cards>> JoinBoth(Victim& victim) {
    const int other = GetParam() == 0 ? 1 : 0;
    auto survivor = std::async(std::launch::async,
                               [this, other] { return Meet({Rank(other)}); });
    while (!HasJoined(other)) std::this_thread::yield();
    victim.Join();
    while (!HasJoined(GetParam())) std::this_thread::yield();
    return survivor;
  }
  std::function<void()> MeetAsVictim() {
    return [this] { static_cast<void>(Meet({Rank(GetParam())})); };
  }
  // `happen` befalls the victim when the other has seen it for `seen_for`.
  void ExpectNamed(milliseconds seen_for, void (Victim::*happen)(),
                   double within_seconds) {
    Victim victim(MeetAsVictim(), Where::kElsewhere);
    auto survivor = JoinBoth(victim);
    EXPECT_EQ(survivor.wait_for(seen_for), std::future_status::timeout);
    (victim.*happen)();
    const SteadyClock clock;
    const Clock::Time began = clock.Now();
    const std::vector<Cards> results = survivor.get();
    const double took = Seconds(clock.Now() - began);
    EXPECT_LT(took, within_seconds);
    RecordProperty("seconds", std::to_string(took));
    const std::string named =
        "rank " + std::to_string(GetParam()) + " (process 1 on ";
    EXPECT_EQ(results[0].status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(Says(results[0], named) && Says(results[0], "ended during"))
        << results[0].status().ToString();
    // Rank 0's join stays for others that wait for it.
    for (const auto& entry : fs::directory_iterator(directory_)) {
      const std::string path = entry.path();
      EXPECT_TRUE(path.ends_with(".over") ||
                  (GetParam() == 0 && path.ends_with(".join.0")))
          << path;
    }
  }
};

// The kernel lets its lock go.
TEST_P(HiddenDeaths, AreSeenAtOnceAndNamed) {
  ExpectNamed(milliseconds(300), &Victim::Kill, 1);
}

// As if its host had ended: it renews its file no more. Before that it is seen
// to live for longer than its silence may last.
TEST_P(HiddenDeaths, ShowInSilence) {
  ExpectNamed(milliseconds(3000), &Victim::Stop, 3.5);
}

TEST_P(HiddenDeaths, ShowInSilenceWhereNoLocksAreSeen) {
  const testing::NoLocks no_locks;
  ExpectNamed(milliseconds(1500), &Victim::Kill, 1.8);
}

// The lock shows that its host runs.
TEST_P(HiddenDeaths, AreNotTakenFromAPause) {
  Victim victim(MeetAsVictim(), Where::kElsewhere);
  auto survivor = JoinBoth(victim);
  EXPECT_EQ(survivor.wait_for(milliseconds(500)), std::future_status::timeout);
  victim.Stop();
  EXPECT_EQ(survivor.wait_for(milliseconds(1400)), std::future_status::timeout);
  victim.GoOn();
  EXPECT_EQ(survivor.wait_for(milliseconds(1000)), std::future_status::timeout);
  victim.Kill();
  EXPECT_FALSE(survivor.get()[0].ok());
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

// Ranks that have met and now connect, as threads. `watches` get what
// is left of the rendezvous.
using Watches = std::vector<std::unique_ptr<RendezvousWatch>>;
void MeetAndWatch(std::vector<RendezvousOptions> ranks, Watches* watches) {
  watches->resize(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].watch = &(*watches)[i];
  }
  for (const Cards& cards : Meet(ranks)) {
    ASSERT_TRUE(cards.ok()) << cards.status().ToString();
  }
  for (const auto& watch : *watches) ASSERT_NE(watch, nullptr);
}

// Looks on behalf of all until each has seen an error, with which it leaves
// before the next one looks. Returns the errors.
std::vector<Status> LookUntilTold(const Watches& watches) {
  const SteadyClock clock;
  const Clock::Time give_up = clock.Now() + seconds(5);
  std::vector<Status> told(watches.size());
  const auto waits = [](const Status& status) { return status.ok(); };
  while (std::any_of(told.begin(), told.end(), waits) &&
         clock.Now() < give_up) {
    for (std::size_t i = 0; i < told.size(); ++i) {
      if (!told[i].ok()) continue;
      told[i] = watches[i]->Look();
      if (!told[i].ok()) watches[i]->Leave(told[i]);
    }
  }
  return told;
}

// Whom a rank that ends leaves running.
enum class Leaves : std::uint8_t { kNobody, kChild };

// Where ranks meet: over TCP, or in files.
enum class Meets : std::uint8_t { kOverTcp, kInFiles };
class Watch : public ::testing::TestWithParam<Meets> {
 protected:
  Watch() {
    if (GetParam() == Meets::kOverTcp) return;
    directory_ = fs::path(::testing::TempDir()) / "watch";
    fs::remove_all(directory_);
    address_ = "file://" + directory_.string();
  }
  ~Watch() override {
    if (!directory_.empty()) fs::remove_all(directory_);
  }
  RendezvousOptions Rank(int r) const {
    return OptionsFor(address_, r, 3, seconds(30));
  }
  std::vector<RendezvousOptions> AllRanks() const {
    return {Rank(0), Rank(1), Rank(2)};
  }
  void ExpectNothingLeft() const {
    if (directory_.empty()) return;
    EXPECT_TRUE(fs::is_empty(directory_))
        << fs::directory_iterator(directory_)->path();
  }
  // As a rank that is killed while it writes.
  void LeaveUnfinishedAck(int rank) const {
    const std::string end = ".join." + std::to_string(rank);
    for (const auto& entry : fs::directory_iterator(directory_)) {
      const std::string path = entry.path();
      if (!path.ends_with(end)) continue;
      std::ifstream file(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      const std::string body = rendezvous::DecodeFrame(bytes).value().body;
      rendezvous::BodyReader reader(body);
      reader.Number();
      reader.Number();
      const std::string start = path.substr(0, path.size() - end.size());
      std::ofstream(start + ".ack." + std::to_string(rank) + "." +
                    reader.Text())
          << "a part";
    }
  }
  // A rank that meets the others, and waits until it is told to end. If it
  // leaves a child behind, it forks again first, since a namespace ends with
  // its first process.
  void BeVictim(int rank, Leaves leaves, int told) const {
    if (leaves == Leaves::kChild && ::fork() != 0) {
      for (;;) ::pause();
    }
    Watches watch;
    MeetAndWatch({Rank(rank)}, &watch);
    if (!directory_.empty()) LeaveUnfinishedAck(rank);
    if (leaves == Leaves::kChild && ::fork() == 0) {
      for (;;) ::pause();
    }
    char word = 0;
    static_cast<void>(::read(told, &word, 1));
    ::_exit(0);
  }
  // No rank has reached the victim, and yet it is named.
  void ExpectNamed(int rank, Where where,
                   Leaves leaves = Leaves::kNobody) const {
    int tell[2];
    ASSERT_EQ(::pipe(tell), 0);
    const Fd hears(tell[0]);
    Fd says(tell[1]);
    KeepInForks(tell[0]);
    Victim victim([&] { BeVictim(rank, leaves, tell[0]); }, where);
    std::vector<RendezvousOptions> others;
    for (const int r : {0, 1, 2}) {
      if (r != rank) others.push_back(Rank(r));
    }
    victim.Join();
    Watches watches;
    MeetAndWatch(others, &watches);
    for (const auto& watch : watches) EXPECT_TRUE(watch->Look().ok());
    says.Reset();
    const SteadyClock clock;
    const Clock::Time died = clock.Now();
    const std::string named = "rank " + std::to_string(rank) + " (";
    for (const Status& told : LookUntilTold(watches)) {
      EXPECT_EQ(told.code(), StatusCode::kUnavailable);
      EXPECT_TRUE(told.message().starts_with(named) &&
                  told.message().find("ended while ranks connected") !=
                      std::string::npos)
          << told.message();
    }
    EXPECT_LT(Seconds(clock.Now() - died), 1);
    ExpectNothingLeft();
  }

  fs::path directory_;
  std::string address_ = FreeAddress();
};

TEST_P(Watch, NamesAtOnceWhoEnds) {
  for (const int rank : {0, 2}) ExpectNamed(rank, Where::kHere);
}

TEST_P(Watch, NamesAtOnceWhoEndsElsewhere) {
  if (!CanHideProcesses()) {
    GTEST_SKIP() << "SKIPPED, NOT TESTED: PID namespaces need root";
  }
  for (const int rank : {0, 2}) ExpectNamed(rank, Where::kElsewhere);
}

// The child has none of what tells that its parent runs.
TEST_P(Watch, NamesAtOnceWhoEndsBeforeAChildOfItsOwn) {
  if (!CanHideProcesses()) {
    GTEST_SKIP() << "SKIPPED, NOT TESTED: PID namespaces need root";
  }
  for (const int rank : {0, 2}) {
    ExpectNamed(rank, Where::kElsewhere, Leaves::kChild);
  }
}

TEST_P(Watch, IsOverForWhoHasAllItsLinks) {
  for (const std::size_t first : {0, 1}) {
    Watches watches;
    MeetAndWatch(AllRanks(), &watches);
    watches[first]->Leave(Status());
    watches[first].reset();
    const std::size_t second = first == 0 ? 2 : 0;
    const SteadyClock clock;
    const Clock::Time until = clock.Now() + milliseconds(100);
    while (clock.Now() < until) {
      EXPECT_TRUE(watches[second]->Look().ok());
    }
    EXPECT_EQ(watches[second]->Over(), first == 0);
    const std::size_t third = 3 - first - second;
    watches[third]->Leave(Status());
    while (!watches[second]->Over() && clock.Now() < until + seconds(5)) {
      EXPECT_TRUE(watches[second]->Look().ok());
    }
    EXPECT_TRUE(watches[second]->Over());
    watches[second]->Leave(Status());
  }
  ExpectNothingLeft();
}

TEST_P(Watch, BringsTheReasonOfWhoCannotConnect) {
  for (const std::size_t culprit : {0, 2}) {
    Watches watches;
    MeetAndWatch(AllRanks(), &watches);
    const Status why(StatusCode::kResourceExhausted, "no descriptors");
    watches[culprit]->Leave(why);
    watches.erase(watches.begin() + static_cast<std::ptrdiff_t>(culprit));
    for (const Status& told : LookUntilTold(watches)) {
      EXPECT_EQ(told.code(), why.code());
      EXPECT_EQ(told.message(), why.message());
    }
    ExpectNothingLeft();
  }
}

// Over its links a rank may hear of a death before it looks here.
TEST_P(Watch, LeavesNothingBehindOfRanksThatDoNotLook) {
  const Status why(StatusCode::kUnavailable, "heard of elsewhere");
  Watches watches;
  MeetAndWatch(AllRanks(), &watches);
  for (const auto& watch : watches) watch->Leave(why);
  ExpectNothingLeft();
}

INSTANTIATE_TEST_SUITE_P(Ranks, Deaths, ::testing::Values(0, 2));
INSTANTIATE_TEST_SUITE_P(Ranks, HiddenDeaths, ::testing::Values(0, 2));
INSTANTIATE_TEST_SUITE_P(Ranks, Watch,
                         ::testing::Values(Meets::kOverTcp, Meets::kInFiles),
                         [](const auto& one) {
                           return one.param == Meets::kOverTcp ? "OverTcp"
                                                               : "InFiles";
                         });

}  // namespace
}  // namespace gradientflow
