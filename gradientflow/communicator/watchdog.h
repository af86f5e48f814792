#pragma once

#include <cstdint>
#include <string>

#include "gradientflow/base/clock.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/observe/logger.h"
#include "transports/fabric.h"

namespace gradientflow {

struct WatchdogOptions {
  double timeout_seconds = 600;
  double stall_check_seconds = 60;
  Logger* logger = nullptr;  // Borrowed; outlives the watchdog.
};

// Makes sure that no job stands still for ever, and that unused memory is given
// back. It reports a stall, with the ranks that are awaited and what each of
// them says it is doing. It ends the job if the collectives of some group, or
// all calls, make no progress for too long; a receive whose message does not
// come may wait while others move. (The fabric finds processes that are dead or
// silent.) NOT thread-safe: the driving thread ticks.
class Watchdog {
 public:
  Watchdog(const WatchdogOptions& options, Fabric& fabric, Executor& executor,
           const Clock& clock);

  // Called every 100 ms or so. `waiting` says whether a call is in flight.
  // `moves` grows with the progress that is made outside the executor.
  void Tick(bool waiting, std::uint64_t moves);

 private:
  std::string Report(double seconds) const;
  std::string Who(int rank) const;
  std::string Doing(int rank) const;

  const WatchdogOptions options_;
  Fabric& fabric_;
  Executor& executor_;
  const Clock& clock_;
  std::uint64_t advances_ = 0;
  std::uint64_t moves_ = 0;
  Clock::Time stands_since_{};
  Clock::Time asked_at_{};
  Clock::Time reported_at_{};
};

}  // namespace gradientflow
