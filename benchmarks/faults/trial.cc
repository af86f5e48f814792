#include "benchmarks/faults/trial.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <system_error>

#include "benchmarks/faults/processes.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::faults {
namespace {

constexpr double kMarginSeconds = 1;
// A file rendezvous gives the others so long to read its verdict.
constexpr double kJoinGraceSeconds = 5;
// After that a survivor hangs.
constexpr double kHangSeconds = 12;
// An orderly end waits so long for the others' good-byes.
constexpr double kLeaveSeconds = 2;
constexpr std::string_view kFileScheme = "file://";

std::set<std::string> FilesIn(const std::filesystem::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    names.insert(entry.path().filename());
  }
  return names;
}

// Whether a process that lives uses it.
bool IsMapped(const std::string& path) {
  std::error_code error;
  for (const auto& process :
       std::filesystem::directory_iterator("/proc", error)) {
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.ends_with(path)) return true;
    }
  }
  return !std::filesystem::exists(path, error);
}

std::int64_t ToNs(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e9);
}

class Trial {
 public:
  Trial(const JobConfig& job, const Fault& fault)
      : job_(job), fault_(fault), board_(job.ranks) {}

  TrialResult Run();

 private:
  void Strike(Processes* ranks);
  void AwaitSurvivors(Processes* ranks);
  void Judge(Processes* ranks, int rank);
  Verdict JudgeError(const RankReport& report, double seconds) const;
  void JudgeVictim(Processes* ranks);
  std::set<std::string> RendezvousFiles() const;
  void FindLeftovers(const Processes& ranks);
  double LimitSeconds() const;
  void Note(Verdict verdict, const std::string& what);
  bool Opening() const { return result_.phase <= Phase::kOpening; }

  const JobConfig& job_;
  const Fault& fault_;
  Board board_;
  TrialResult result_;
  std::int64_t struck_ns_ = 0;
  bool had_done_its_part_ = false;  // The victim.
  std::set<std::string> shm_before_;
  std::set<std::string> files_before_;  // In the rendezvous directory.
};

TrialResult Trial::Run() {
  shm_before_ = FilesIn("/dev/shm");
  files_before_ = RendezvousFiles();
  Processes ranks(job_.ranks, [this](int rank) {
    return Train(job_, rank, &board_[rank]).ok() ? 0 : 1;
  });
  Strike(&ranks);
  AwaitSurvivors(&ranks);
  for (int r = 0; r < job_.ranks; ++r) {
    if (r != fault_.victim) Judge(&ranks, r);
  }
  JudgeVictim(&ranks);
  FindLeftovers(ranks);
  return result_;
}

void Trial::Strike(Processes* ranks) {
  const RankReport& victim = board_[fault_.victim];
  const std::int64_t give_up = NowNs() + ToNs(kHangSeconds);
  const auto there = [&] {
    const Phase phase = victim.phase.load();
    if (fault_.phase <= Phase::kOpening) return phase >= fault_.phase;
    if (phase >= Phase::kClosing) return true;
    return phase > Phase::kOpening && fault_.phase < Phase::kClosing &&
           (victim.step.load() > fault_.step ||
            (victim.step.load() == fault_.step && phase >= fault_.phase));
  };
  while (!there() && NowNs() < give_up && victim.ended_ns.load() == 0) {
    Pause(std::chrono::microseconds(50));
  }
  Pause(fault_.delay);
  result_.phase = victim.phase.load();
  result_.step = victim.step.load();
  struck_ns_ = NowNs();
  ranks->Signal(fault_.victim, fault_.stop ? SIGSTOP : SIGKILL);
}

void Trial::AwaitSurvivors(Processes* ranks) {
  const std::int64_t give_up = struck_ns_ + ToNs(kHangSeconds);
  for (int r = 0; r < job_.ranks; ++r) {
    if (r != fault_.victim) ranks->WaitFor(r, give_up);
  }
  // It went on for a moment between the look and the signal.
  const RankReport& victim = board_[fault_.victim];
  result_.phase = victim.phase.load();
  result_.step = victim.step.load();
  had_done_its_part_ = HadDoneItsPart(job_, victim);
}

double Trial::LimitSeconds() const {
  if (Opening()) {
    return std::max(job_.join_timeout_seconds,
                    fault_.stop ? job_.heartbeat_timeout_seconds : 0) +
           kMarginSeconds + kJoinGraceSeconds;
  }
  return kMarginSeconds + (fault_.stop ? job_.heartbeat_timeout_seconds : 0);
}

void Trial::Note(Verdict verdict, const std::string& what) {
  if (verdict < result_.verdict) return;
  if (verdict > result_.verdict || result_.what.empty()) result_.what = what;
  result_.verdict = verdict;
}

void Trial::Judge(Processes* ranks, int rank) {
  const RankReport& report = board_[rank];
  const std::string who = StrCat("rank ", rank, ": ");
  if (!ranks->ended(rank) || report.ended_ns.load() == 0) {
    const bool crashed = ranks->ended(rank);
    Note(crashed ? Verdict::kUnexpected : Verdict::kHang,
         StrCat(who, crashed ? "crashed in " : "hangs in ",
                Name(report.phase.load()), " of step ", report.step.load()));
    return;
  }
  const double seconds =
      static_cast<double>(report.ended_ns.load() - struck_ns_) * 1e-9;
  if (report.wrong_sums.load() > 0) {
    Note(Verdict::kWrongSum, StrCat(who, report.wrong_sums.load(),
                                    " wrong elements; ", report.text));
  } else if (report.code.load() == StatusCode::kOk) {
    const bool in_time = seconds <= kLeaveSeconds + kMarginSeconds;
    Note(!had_done_its_part_ ? Verdict::kUnexpected
         : in_time           ? Verdict::kFinished
                             : Verdict::kSlow,
         StrCat(who, "succeeded after ", seconds, " s"));
  } else {
    result_.detection_seconds.push_back(seconds);
    Note(JudgeError(report, seconds),
         StrCat(who, Name(report.code.load()), " after ", seconds,
                " s: ", report.text));
  }
}

Verdict Trial::JudgeError(const RankReport& report, double seconds) const {
  const std::string text = report.text;
  const auto names = [&](int rank) {
    if (text.find(StrCat("rank ", rank, " (")) != std::string::npos) {
      return true;
    }
    // Who has not come yet has no address.
    return Opening() &&
           std::regex_search(
               text, std::regex(StrCat(R"(rank(s|\(s\))? ([0-9]+, )*)", rank,
                                       R"(\b)")));
  };
  const StatusCode code = report.code.load();
  const bool good_code = code == StatusCode::kUnavailable ||
                         code == StatusCode::kDeadlineExceeded ||
                         code == StatusCode::kAborted;
  const bool names_step =
      Opening() ||
      text.find(StrCat("step ", report.step.load())) != std::string::npos;
  if (!good_code || !names_step) return Verdict::kUnclear;
  if (seconds > LimitSeconds()) return Verdict::kSlow;
  if (names(fault_.victim)) return Verdict::kClean;
  if (Opening()) return Verdict::kIndirect;
  for (int r = 0; r < job_.ranks; ++r) {
    if (names(r)) return Verdict::kWrongCulprit;
  }
  return Verdict::kUnclear;
}

// It may have any error, but must come to an end and make no wrong sums.
void Trial::JudgeVictim(Processes* ranks) {
  const int victim = fault_.victim;
  RankReport& report = board_[victim];
  if (fault_.stop) {
    ranks->Signal(victim, SIGCONT);
    const double patience =
        kHangSeconds + (Opening() ? job_.join_timeout_seconds : 0);
    if (!ranks->WaitFor(victim, NowNs() + ToNs(patience))) {
      Note(Verdict::kHang,
           StrCat("rank ", victim, ", stopped, hangs in ",
                  Name(report.phase.load()), " of step ", report.step.load()));
    } else if (report.ended_ns.load() == 0) {
      Note(Verdict::kUnexpected, StrCat("rank ", victim, ", stopped, crashed"));
    }
  } else {
    ranks->WaitFor(victim, NowNs() + ToNs(kHangSeconds));
  }
  if (report.wrong_sums.load() > 0) {
    Note(Verdict::kWrongSum,
         StrCat("rank ", victim, ", the victim: ", report.wrong_sums.load(),
                " wrong elements"));
  }
}

std::set<std::string> Trial::RendezvousFiles() const {
  if (!job_.rendezvous.starts_with(kFileScheme)) return {};
  return FilesIn(job_.rendezvous.substr(kFileScheme.size()));
}

void Trial::FindLeftovers(const Processes& ranks) {
  if (result_.verdict != Verdict::kHang && ranks.AnyLeft()) {
    result_.leftovers.push_back("a process");
  }
  for (const std::string& name : FilesIn("/dev/shm")) {
    if (!shm_before_.contains(name)) {
      // Other programs of this machine come and go.
      if (!IsMapped("/dev/shm/" + name)) {
        result_.leftovers.push_back("/dev/shm/" + name);
      }
    }
  }
  // Who is killed among the files cannot take its own away. The job's next run
  // does, a minute later: they are not this trial's.
  if (Opening()) return;
  for (const std::string& name : RendezvousFiles()) {
    if (!files_before_.contains(name)) {
      result_.leftovers.push_back("rendezvous file " + name);
    }
  }
}

}  // namespace

std::string_view Name(Verdict verdict) {
  constexpr std::string_view kNames[kVerdicts] = {
      "clean error", "finished",      "indirect error",
      "slow",        "unclear error", "wrong culprit",
      "wrong sum",   "hang",          "unexpected"};
  return kNames[static_cast<std::size_t>(verdict)];
}

bool HadDoneItsPart(const JobConfig& job, const RankReport& rank) {
  const Phase phase = rank.phase.load();
  if (phase >= Phase::kClosing) return true;
  if (phase < Phase::kBackward || rank.step.load() + 1 < job.steps) {
    return false;
  }
  return phase > Phase::kBackward ||
         rank.handed_in.load() == job.tensor_elements.size();
}

TrialResult RunTrial(const JobConfig& job, const Fault& fault) {
  return Trial(job, fault).Run();
}

}  // namespace gradientflow::faults
