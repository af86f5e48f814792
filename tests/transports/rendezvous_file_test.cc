#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/transports/rendezvous_ranks.h"
#include "transports/rendezvous/frames.h"

namespace gradientflow {
namespace {

namespace fs = std::filesystem;
using rendezvous_test::AllCards;
using rendezvous_test::CardOf;
using rendezvous_test::Cards;
using rendezvous_test::ExchangeCards;
using rendezvous_test::Meet;
using rendezvous_test::OptionsFor;
using rendezvous_test::Says;
using std::chrono::milliseconds;
using std::chrono::seconds;

class RendezvousFile : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        fs::path(::testing::TempDir()) /
        (std::string("rendezvous_") +
         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directory(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string address() const { return "file://" + directory_.string(); }
  RendezvousOptions Rank(int rank, int size,
                         milliseconds patience = seconds(10)) const {
    return OptionsFor(address(), rank, size, patience);
  }
  std::size_t Files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory_), {}));
  }
  fs::path FileNamed(const std::string& ending) const {
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (entry.path().string().ends_with(ending)) return entry.path();
    }
    return {};
  }

  // The prefix of the names of the job's files, once rank 1 has written one;
  // empty if it does not.
  std::string StemOnceJoined() const {
    const SteadyClock clock;
    const Clock::Time give_up = clock.Now() + seconds(5);
    while (FileNamed(".join.1").empty() && clock.Now() < give_up) {
      std::this_thread::yield();
    }
    return FileNamed(".join.1").stem().stem().string();
  }

  fs::path directory_;
};

TEST_F(RendezvousFile, GivesEveryRankAllCardsAndLeavesNothing) {
  for (const int size : {2, 3, 7}) {
    std::vector<RendezvousOptions> all;
    all.reserve(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) all.push_back(Rank(r, size));
    for (const Cards& cards : Meet(all)) {
      ASSERT_TRUE(cards.ok()) << cards.status().ToString();
      EXPECT_EQ(cards.value(), AllCards(size));
    }
    EXPECT_EQ(Files(), 0u);
  }
}

TEST_F(RendezvousFile, RunsOneAfterTheOtherDoNotMix) {
  for (int run = 0; run < 5; ++run) {
    for (const Cards& cards : Meet({Rank(0, 2), Rank(1, 2)})) {
      ASSERT_TRUE(cards.ok()) << run << cards.status().ToString();
    }
  }
}

TEST_F(RendezvousFile, JobsWithOtherTokensDoNotMeet) {
  RendezvousOptions other_0 = Rank(0, 2);
  RendezvousOptions other_1 = Rank(1, 2);
  other_0.secret = other_1.secret = JobSecret("another", "");
  for (const Cards& cards : Meet({Rank(0, 2), Rank(1, 2), other_0, other_1})) {
    EXPECT_TRUE(cards.ok()) << cards.status().ToString();
  }
}

// The files of a run that crashed at the worst moments, made by copying those
// of a live run.
class StaleFiles : public RendezvousFile {
 protected:
  // All files that a run of `size` ranks writes, each as it was at some time.
  void CrashAfterJoining(int size) {
    const fs::path kept = directory_.string() + "_kept";
    fs::remove_all(kept);
    fs::create_directory(kept);
    std::vector<RendezvousOptions> all;
    all.reserve(static_cast<std::size_t>(size));
    for (int r = 0; r < size; ++r) all.push_back(Rank(r, size));
    // Files live briefly: on a busy machine it may take several runs to see
    // them.
    for (int run = 0; run < 100 && Joins(kept) < size; ++run) {
      std::atomic<bool> met = false;
      std::thread ranks([&] {
        EXPECT_TRUE(Meet(all)[0].ok());
        met = true;
      });
      std::error_code ignored;
      while (!met) {
        for (const auto& entry : fs::directory_iterator(directory_, ignored)) {
          fs::copy(entry.path(), kept / entry.path().filename(),
                   fs::copy_options::overwrite_existing, ignored);
        }
      }
      ranks.join();
    }
    ASSERT_EQ(Joins(kept), size);
    for (const auto& entry : fs::directory_iterator(kept)) {
      fs::copy(entry.path(), directory_ / entry.path().filename(),
               fs::copy_options::overwrite_existing);
    }
    fs::remove_all(kept);
  }
  static int Joins(const fs::path& in) {
    int joins = 0;
    for (const auto& entry : fs::directory_iterator(in)) {
      const std::string stem = entry.path().stem().string();
      joins += stem.ends_with(".join") ? 1 : 0;
    }
    return joins;
  }
};

TEST_F(StaleFiles, OfACrashedRunAreNotTakenForThisOnes) {
  CrashAfterJoining(3);
  EXPECT_GT(Files(), 0u);
  // Rank 2's left-over join is there first: its card must not be taken.
  std::vector<Cards> early;
  std::thread ranks([&] { early = Meet({Rank(0, 3), Rank(1, 3)}); });
  const SteadyClock clock;
  const std::string fresh = "a fresh card";
  const Cards last = ExchangeCards(Rank(2, 3), fresh, clock);
  ranks.join();
  ASSERT_TRUE(last.ok()) << last.status().ToString();
  EXPECT_EQ(last.value()[2], fresh);
  for (const Cards& cards : early) {
    ASSERT_TRUE(cards.ok()) << cards.status().ToString();
    EXPECT_EQ(cards.value()[0], CardOf(0));
    EXPECT_EQ(cards.value()[2], fresh);
  }
}

TEST_F(StaleFiles, DoNotStandInForAMissingRank) {
  CrashAfterJoining(3);
  const auto results =
      Meet({Rank(0, 3, milliseconds(400)), Rank(1, 3, milliseconds(400))});
  for (const Cards& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Says(result, "ranks 2 of 3 did not"))
        << result.status().ToString();
    EXPECT_TRUE(Says(result, "rank 2's file is of"));
    EXPECT_TRUE(Says(result, "dead or of an earlier run"));
  }
}

TEST_F(RendezvousFile, GarbageFilesAreNotTaken) {
  std::vector<Cards> results;
  std::thread first([&] { results = Meet({Rank(1, 2)}); });
  const std::string stem = StemOnceJoined();
  ASSERT_FALSE(stem.empty());
  for (const char* name : {".verdict", ".go", ".ack.1", ".dup.1", ".dup.0"}) {
    std::ofstream(directory_ / (stem + name)) << "GFRV garbage of some length";
  }
  const auto zero = Meet({Rank(0, 2)});
  first.join();
  EXPECT_TRUE(zero[0].ok()) << zero[0].status().ToString();
  EXPECT_TRUE(results[0].ok()) << results[0].status().ToString();
}

TEST_F(RendezvousFile, WhatAKilledWriterBeganLongAgoIsSweptUp) {
  std::vector<Cards> results;
  std::thread first([&] { results = Meet({Rank(1, 2)}); });
  const std::string stem = StemOnceJoined();
  ASSERT_FALSE(stem.empty());
  const std::string nonce = ".0123456789abcdef0123456789abcdef";
  const auto begin = [&](const std::string& name, seconds ago) {
    const fs::path path = directory_ / name;
    std::ofstream(path) << "GFRV";
    fs::last_write_time(path, fs::file_time_type::clock::now() - ago);
  };
  begin(stem + ".go" + nonce, seconds(120));
  begin(stem + ".join.0" + nonce, seconds(120));
  begin(stem + ".ack.1" + nonce, seconds(0));  // May still be in use.
  begin("another" + nonce, seconds(120));      // Belongs to another job.
  begin(stem + ".keep", seconds(120));         // No temporary file.
  const auto zero = Meet({Rank(0, 2)});
  first.join();
  ASSERT_TRUE(zero[0].ok()) << zero[0].status().ToString();
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    left.insert(entry.path().filename());
  }
  EXPECT_EQ(left, (std::set<std::string>{stem + ".ack.1" + nonce,
                                         "another" + nonce, stem + ".keep"}));
}

TEST_F(RendezvousFile, MissingRanksAreNamedToAllThatCame) {
  const auto results =
      Meet({Rank(0, 5, milliseconds(300)), Rank(3, 5, milliseconds(300))});
  for (const Cards& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Says(result, "ranks 1, 2, 4 of 5 did not join in time"))
        << result.status().ToString();
  }
  // What tells the missing ranks why.
  EXPECT_EQ(Files(), 1u);
  EXPECT_FALSE(FileNamed(".over").empty());
}

TEST_F(RendezvousFile, WhoJoinsWhenTheOthersHaveGoneIsToldWhy) {
  Meet({Rank(0, 3, milliseconds(50)), Rank(1, 3)});
  const SteadyClock clock;
  const Clock::Time joined = clock.Now();
  const Cards late = Meet({Rank(2, 3, seconds(30))})[0];
  EXPECT_LT(Seconds(clock.Now() - joined), 5);
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(late, "the others gave up before rank 2 joined: ") &&
              Says(late, "ranks 2 of 3 did not join in time"))
      << late.status().ToString();
}

// It does not take the end of the first try for that of the second.
TEST_F(RendezvousFile, WhoeverWasToldMayTryAgain) {
  Meet({Rank(0, 3, milliseconds(50)), Rank(1, 3)});
  EXPECT_FALSE(Meet({Rank(2, 3)})[0].ok());
  std::vector<Cards> early;
  std::thread ranks([&] { early = Meet({Rank(1, 3), Rank(2, 3)}); });
  while (FileNamed(".join.1").empty() || FileNamed(".join.2").empty()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(Meet({Rank(0, 3)})[0].ok());
  ranks.join();
  for (const Cards& cards : early) {
    EXPECT_TRUE(cards.ok()) << cards.status().ToString();
  }
  EXPECT_EQ(Files(), 0u);
}

// Whoever starts a job once more may start another rank before rank 0.
TEST_F(RendezvousFile, WhatEndedBeforeAProcessBeganDoesNotConcernIt) {
  Meet({Rank(0, 3, milliseconds(50)), Rank(1, 3)});
  const auto long_ago =
      fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(FileNamed(".over"), long_ago);
  const Cards late = Meet({Rank(2, 3, milliseconds(100))})[0];
  EXPECT_TRUE(Says(late, "had no word from rank 0 in time"))
      << late.status().ToString();
}

TEST_F(RendezvousFile, OfTwoThatClaimARankTheEarlierIsLeftOut) {
  std::vector<Cards> stale;
  std::thread first([&] { stale = Meet({Rank(1, 2)}); });
  ASSERT_FALSE(StemOnceJoined().empty());
  const auto results = Meet({Rank(0, 2), Rank(1, 2, seconds(6))});
  first.join();
  ASSERT_TRUE(results[0].ok()) << results[0].status().ToString();
  EXPECT_EQ(results[0].value(), AllCards(2));
  // Rank 0 may have met the first before the second came.
  ASSERT_NE(stale[0].ok(), results[1].ok())
      << "first: " << stale[0].status().ToString()
      << "; second: " << results[1].status().ToString();
  if (stale[0].ok()) return;
  EXPECT_EQ(stale[0].status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(stale[0], "rank 1 is claimed twice: by process") &&
              Says(stale[0], "and, later, by "))
      << stale[0].status().ToString();
  EXPECT_EQ(Files(), 0u);
}

// Whoever is counted on learns that all have met, whatever the others do to the
// files meanwhile.
TEST_F(RendezvousFile, OfManyThatClaimARankOneMeets) {
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<RendezvousOptions> all = {Rank(0, 2)};
    all.resize(6, Rank(1, 2, milliseconds(500)));
    const std::vector<Cards> results = Meet(all);
    EXPECT_TRUE(results[0].ok()) << results[0].status().ToString();
    std::string losers;
    int met = -1;  // Rank 0 has, too.
    for (const Cards& cards : results) {
      if (cards.ok()) {
        ++met;
      } else {
        losers += cards.status().ToString() + "\n";
      }
    }
    ASSERT_EQ(met, 1) << losers;
  }
}

// Rank 1 is the test, and reads the end of a meeting when rank 0 has long left.
class LateReader : public RendezvousFile {
 protected:
  void WaitUntil(const std::function<bool()>& there) const {
    const SteadyClock clock;
    const Clock::Time give_up = clock.Now() + seconds(10);
    while (!there() && clock.Now() < give_up) std::this_thread::yield();
  }
  std::string ContentsOf(const std::string& ending) const {
    std::ifstream file(FileNamed(ending), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Writes the file as a rank does.
  void Write(const std::string& name, rendezvous::FrameType type,
             const std::string& body) const {
    const fs::path path = directory_ / name;
    std::ofstream(path.string() + ".new", std::ios::binary)
        << rendezvous::EncodeFrame(type, body);
    fs::rename(path.string() + ".new", path);
  }
  std::string StemOfRankZero() const {
    WaitUntil([&] { return !FileNamed(".join.0").empty(); });
    return FileNamed(".join.0").stem().stem().string();
  }
  void WriteJoin(const std::string& stem) const {
    std::string body;
    rendezvous::PutNumber(1, &body);
    rendezvous::PutNumber(2, &body);
    for (const char* text : {"a nonce", "a process elsewhere", "", "a card"}) {
      rendezvous::PutText(text, &body);
    }
    Write(stem + ".join.1", rendezvous::FrameType::kJoin, body);
  }
  // Rank 0's verdict about the process that wrote this nonce as rank 1.
  void WriteVerdict(const std::string& stem, const std::string& id,
                    const std::string& nonce) const {
    std::string body;
    rendezvous::PutText(id, &body);
    rendezvous::PutText(rendezvous::EncodeTexts({"zero", nonce}), &body);
    rendezvous::PutText(rendezvous::EncodeTexts({"a card", "another"}), &body);
    Write(stem + ".verdict", rendezvous::FrameType::kIntroduction, body);
  }
};

TEST_F(LateReader, FindsTheEndAfterRankZeroHasLeft) {
  std::vector<Cards> zero;
  std::thread rank_zero([&] { zero = Meet({Rank(0, 2, seconds(30))}); });
  const std::string stem = StemOfRankZero();
  WriteJoin(stem);
  WaitUntil([&] { return !FileNamed(".verdict").empty(); });
  const Result<rendezvous::Frame> verdict =
      rendezvous::DecodeFrame(ContentsOf(".verdict"));
  ASSERT_TRUE(verdict.ok());
  const std::string id = rendezvous::BodyReader(verdict.value().body).Text();
  std::string ack;
  Write(stem + ".ack.1", rendezvous::FrameType::kAck, id);
  rank_zero.join();
  ASSERT_TRUE(zero[0].ok()) << zero[0].status().ToString();
  const auto go = rendezvous::DecodeFrame(ContentsOf(".go"));
  ASSERT_TRUE(go.ok()) << "rank 0 did not wait until this rank had read it";
  EXPECT_EQ(go.value().body, id);
  EXPECT_EQ(ContentsOf(".join.0"), "") << "rank 0 has left";
}

TEST_F(LateReader, FindsTheErrorAfterRankZeroHasLeft) {
  std::vector<Cards> zero;
  std::thread rank_zero([&] { zero = Meet({Rank(0, 3, milliseconds(300))}); });
  WriteJoin(StemOfRankZero());
  rank_zero.join();
  EXPECT_EQ(zero[0].status().code(), StatusCode::kDeadlineExceeded);
  const auto verdict = rendezvous::DecodeFrame(ContentsOf(".verdict"));
  ASSERT_TRUE(verdict.ok());
  EXPECT_EQ(verdict.value().type, rendezvous::FrameType::kFailed);
}

// Rank 0 is the test. A later process claims rank 1 when the earlier one has
// acknowledged rank 0's verdict.
class LateClaim : public LateReader {
 protected:
  void SetUp() override {
    LateReader::SetUp();
    rank_one_ = std::thread([&] {
      one_ = Meet({Rank(1, 2, seconds(5))});
      over_ = true;
    });
    stem_ = StemOnceJoined();
    const auto join = rendezvous::DecodeFrame(ContentsOf(".join.1"));
    ASSERT_TRUE(join.ok());
    rendezvous::BodyReader reader(join.value().body);
    reader.Number();
    reader.Number();
    WriteVerdict(stem_, "an id", reader.Text());
    WaitUntil([&] { return !FileNamed(".ack.1").empty(); });
    WriteJoin(stem_);
    // The earlier process looks every 50 ms at least, and may give way.
    const SteadyClock clock;
    const Clock::Time until = clock.Now() + milliseconds(200);
    WaitUntil([&] { return over_ || clock.Now() >= until; });
  }
  void TearDown() override {
    if (rank_one_.joinable()) rank_one_.join();
    LateReader::TearDown();
  }
  std::thread rank_one_;
  std::vector<Cards> one_;
  std::atomic<bool> over_ = false;
  std::string stem_;
};

TEST_F(LateClaim, DoesNotPartRankZeroFromWhoItCountsOn) {
  Write(stem_ + ".go", rendezvous::FrameType::kGo, "an id");
  rank_one_.join();
  ASSERT_TRUE(one_[0].ok()) << one_[0].status().ToString();
  EXPECT_EQ(one_[0].value(), (std::vector<std::string>{"a card", "another"}));
}

TEST_F(LateClaim, HoldsOnceRankZeroHasTakenIt) {
  WriteVerdict(stem_, "another id", "a nonce");
  rank_one_.join();
  EXPECT_EQ(one_[0].status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(one_[0], "rank 1 is claimed twice: by process"))
      << one_[0].status().ToString();
}

// It was never seen to run, and its file is older than this rank's; but it has
// written a verdict about this rank.
TEST_F(LateReader, NamesARankZeroThatEndedBeforeItWasSeen) {
  std::vector<Cards> one;
  std::thread rank_one([&] { one = Meet({Rank(1, 2, milliseconds(1000))}); });
  const std::string stem = StemOnceJoined();
  const auto join = rendezvous::DecodeFrame(ContentsOf(".join.1"));
  ASSERT_TRUE(join.ok());
  rendezvous::BodyReader reader(join.value().body);
  reader.Number();
  reader.Number();
  const std::string nonce = reader.Text();
  reader.Text();
  // The same process with another start is one that has ended.
  std::string process = reader.Text();
  process.replace(process.rfind(' '), std::string::npos, " 1");
  std::string body;
  rendezvous::PutNumber(0, &body);
  rendezvous::PutNumber(2, &body);
  for (const std::string& text : {std::string("zero"), std::string("process 9"),
                                  process, std::string("a card")}) {
    rendezvous::PutText(text, &body);
  }
  const fs::path early = directory_ / "early";
  std::ofstream(early, std::ios::binary)
      << rendezvous::EncodeFrame(rendezvous::FrameType::kJoin, body);
  fs::last_write_time(early, fs::file_time_type::clock::now() - seconds(60));
  fs::rename(early, directory_ / (stem + ".join.0"));
  WriteVerdict(stem, "an id", nonce);
  rank_one.join();
  EXPECT_EQ(one[0].status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Says(one[0], "rank 0 (process 9) ended during"))
      << one[0].status().ToString();
}

TEST_F(RendezvousFile, AnotherSizeIsNamed) {
  const auto results =
      Meet({Rank(0, 2, milliseconds(300)), Rank(1, 3, milliseconds(300))});
  for (const Cards& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kDeadlineExceeded);
  }
  EXPECT_TRUE(Says(results[0], "which expects 3 ranks, rank 0 expects 2"))
      << results[0].status().ToString();
}

TEST_F(RendezvousFile, BadDirectoriesAreReported) {
  for (const std::string where :
       {"file://", "file://relative", "file:///proc/none/such"}) {
    const auto results = Meet({OptionsFor(where, 0, 2, seconds(1))});
    EXPECT_FALSE(results[0].ok()) << where;
  }
}

}  // namespace
}  // namespace gradientflow
