#include "gradientflow/communicator/watchdog.h"

#include <algorithm>
#include <vector>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr int kOthersTold = 8;

}  // namespace

Watchdog::Watchdog(const WatchdogOptions& options, Fabric& fabric,
                   Executor& executor, const Clock& clock)
    : options_(options),
      fabric_(fabric),
      executor_(executor),
      clock_(clock),
      stands_since_(clock.Now()) {}

void Watchdog::Tick(bool waiting, std::uint64_t moves) {
  fabric_.Tick(waiting);
  const Clock::Time now = clock_.Now();
  executor_.TrimScratch(now);
  if (!waiting || executor_.advances() != advances_ || moves != moves_) {
    advances_ = executor_.advances();
    moves_ = moves;
    stands_since_ = now;
  }
  // Messages, and calls of another group, are no progress for calls that stand
  // still.
  const Clock::Time since = std::min(stands_since_, executor_.StandsSince(now));
  if (since == now) {
    asked_at_ = reported_at_ = now;
    return;
  }
  // Asks the other ranks what they are doing, in time for the report.
  const double patience =
      std::min(options_.stall_check_seconds, options_.timeout_seconds);
  if (Seconds(now - asked_at_) > std::min(1.0, patience / 4)) {
    asked_at_ = now;
    fabric_.AskProgress();
  }
  const double stands = Seconds(now - since);
  if (stands > options_.timeout_seconds) {
    fabric_.Fail(Status(StatusCode::kDeadlineExceeded, Report(stands)));
    return;
  }
  if (Seconds(now - reported_at_) > options_.stall_check_seconds) {
    reported_at_ = now;
    options_.logger->Log(LogLevel::kWarning, "stall: " + Report(stands));
  }
}

std::string Watchdog::Who(int rank) const {
  return StrCat("rank ", rank, " (",
                rank == fabric_.rank() ? "self" : fabric_.AddressOf(rank), ")");
}

std::string Watchdog::Doing(int rank) const {
  const std::string& said = fabric_.progress_text_of(rank);
  std::string text = !said.empty()                   ? said
                     : fabric_.link(rank) == nullptr ? "not linked"
                                                     : "silent";
  if (const std::uint64_t bytes = fabric_.waiting_bytes(rank); bytes > 0) {
    text +=
        StrCat(" and has sent ", bytes, " bytes that no receive here takes");
  }
  return text;
}

std::string Watchdog::Report(double seconds) const {
  std::string text = StrCat("rank ", fabric_.rank(), " has waited ", seconds,
                            " s ", fabric_.progress_text(), "; awaited:");
  const std::vector<int> awaited = executor_.AwaitedRanks();
  for (int rank : awaited) {
    text += StrCat(" ", Who(rank), ", which is ", Doing(rank), ";");
  }
  if (awaited.empty()) text += " no rank in particular;";
  text.pop_back();
  // The awaited ranks may in turn wait for a rank that does not come.
  int told = 0;
  for (int rank = 0; rank < fabric_.size() && told < kOthersTold; ++rank) {
    if (fabric_.link(rank) == nullptr ||
        std::binary_search(awaited.begin(), awaited.end(), rank)) {
      continue;
    }
    text += StrCat(told++ == 0 ? "; of the others " : "; ", Who(rank), " is ",
                   Doing(rank));
  }
  return text;
}

}  // namespace gradientflow
