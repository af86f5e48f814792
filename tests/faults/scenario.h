#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "tests/faults/board.h"
#include "tests/faults/job.h"
#include "tests/faults/processes.h"

// Ranks as processes that follow a test's script.
namespace gradientflow::faults {

inline std::int64_t After(double seconds) {
  return NowNs() + static_cast<std::int64_t>(seconds * 1e9);
}

// An empty folder, removed in the destructor.
class Folder {
 public:
  Folder() : path_(::testing::TempDir() + "gradientflow-faults-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << path_;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string url() const { return "file://" + path_; }

 private:
  std::string path_;
};

// One RankReport per rank, in anonymous memory that children inherit.
class Board {
 public:
  explicit Board(int ranks)
      : bytes_(sizeof(RankReport) * static_cast<std::size_t>(ranks)),
        reports_(static_cast<RankReport*>(
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (reports_ == MAP_FAILED) std::abort();
    for (int r = 0; r < ranks; ++r) new (&reports_[r]) RankReport;
  }
  ~Board() { munmap(reports_, bytes_); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  RankReport& operator[](int rank) { return reports_[rank]; }

 private:
  const std::size_t bytes_;
  RankReport* const reports_;
};

// REQUIRES: no other threads in this process.
class Scenario {
 public:
  using Main = std::function<Status(int rank, Board& board)>;

  // The rank's result is what `main` returns.
  Scenario(int ranks, const Main& main)
      : board_(ranks), processes_(ranks, [this, main](int rank) {
          const Status status = main(rank, board_);
          if (board_[rank].ended_ns.load() == 0) {
            board_[rank].End(NowNs(), status);
          }
          return 0;
        }) {}

  Board& board() { return board_; }
  Processes& processes() { return processes_; }
  RankReport& operator[](int rank) { return board_[rank]; }

  // Returns false, and fails the test, if the rank has not ended by then, has
  // crashed or has computed a wrong sum.
  bool EndsWithin(int rank, double seconds) {
    const bool ended = processes_.WaitFor(rank, After(seconds)) &&
                       board_[rank].ended_ns.load() != 0;
    EXPECT_TRUE(ended) << "rank " << rank << " hangs or crashed in "
                       << "phase "
                       << static_cast<int>(board_[rank].phase.load())
                       << " of step " << board_[rank].step.load();
    EXPECT_EQ(board_[rank].wrong_sums.load(), 0U) << "rank " << rank;
    return ended;
  }
  void ExpectSuccess(int rank, double seconds) {
    if (!EndsWithin(rank, seconds)) return;
    EXPECT_EQ(board_[rank].code.load(), StatusCode::kOk)
        << "rank " << rank << ": " << board_[rank].text;
  }
  // Expects an error of `code` whose text contains all `parts`.
  void ExpectError(int rank, double seconds, StatusCode code,
                   const std::vector<std::string>& parts) {
    if (!EndsWithin(rank, seconds)) return;
    EXPECT_EQ(board_[rank].code.load(), code)
        << "rank " << rank << ": " << board_[rank].text;
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(board_[rank].text).find(part), std::string::npos)
          << "rank " << rank << ": expected \"" << part
          << "\" in: " << board_[rank].text;
    }
  }

 private:
  Board board_;
  Processes processes_;
};

// Waits for a condition that another process fulfils. Returns whether it came
// true.
inline bool Eventually(const std::function<bool()>& there, double seconds) {
  const std::int64_t deadline = After(seconds);
  while (!there()) {
    if (NowNs() > deadline) return false;
    Pause(std::chrono::milliseconds(1));
  }
  return true;
}

// Runs one step, and checks it.
inline Status TrainStep(const JobConfig& job, std::uint64_t step,
                        GradientSession* session, RankReport* report) {
  Backward(job, step, session, report);
  report->phase.store(Phase::kFinishing);
  const Result<StepStats> stats = session->FinishStep();
  if (!stats.ok()) return stats.status();
  report->wrong_sums.fetch_add(CountWrong(job, step, *session));
  report->phase.store(Phase::kBetween);
  return Status();
}

}  // namespace gradientflow::faults
