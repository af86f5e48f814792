#include "benchmarks/faults/board.h"

#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace gradientflow::faults {

std::string_view Name(Phase phase) {
  constexpr std::string_view kNames[kPhases] = {
      "starting",  "opening",       "backward", "finishing",
      "optimizer", "between steps", "closing",  "closed"};
  return kNames[static_cast<std::size_t>(phase)];
}

std::int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void Pause(std::chrono::nanoseconds time) {
  const auto ns = std::max<std::int64_t>(time.count(), 0);
  const timespec limit = {static_cast<time_t>(ns / 1000000000),
                          static_cast<long>(ns % 1000000000)};
  ppoll(nullptr, 0, &limit, nullptr);
}

void RankReport::End(std::int64_t now_ns, const Status& status) {
  const std::string said = status.ok() ? "" : status.message();
  const std::size_t bytes = std::min(said.size(), kTextBytes - 1);
  std::memcpy(text, said.data(), bytes);
  text[bytes] = '\0';
  code.store(status.code());
  ended_ns.store(now_ns);
}

Board::Board(int ranks) : ranks_(ranks) {
  const std::size_t bytes =
      sizeof(RankReport) * static_cast<std::size_t>(ranks);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::abort();
  }
  reports_ = static_cast<RankReport*>(memory);
  for (int r = 0; r < ranks; ++r) new (&reports_[r]) RankReport;
}

Board::~Board() {
  munmap(reports_, sizeof(RankReport) * static_cast<std::size_t>(ranks_));
}

}  // namespace gradientflow::faults
