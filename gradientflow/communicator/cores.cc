#include "gradientflow/communicator/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace gradientflow {
namespace {

// Cores on which this thread, and those that it starts, may run; 0 if unknown.
int AllowedCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 0;
  return CPU_COUNT(&allowed);
}

}  // namespace

int ComputeThreads(int setting, int cores) {
  // More than this gain nothing where memory is the limit.
  constexpr int kMost = 8;
  return setting > 0 ? setting : std::min(cores, kMost);
}

int HostCores() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

LocalPlace LocalPlaceIn(const CallGroup& group) {
  const std::vector<int>& host = group.topology.host;
  const auto mine = host.begin() + group.rank;
  return {static_cast<int>(std::count(host.begin(), mine, *mine)),
          static_cast<int>(std::count(host.begin(), host.end(), *mine))};
}

int CoresOf(const LocalPlace& local) {
  const int share = HostCores() / local.ranks;
  const int allowed = AllowedCores();
  return std::max(1, allowed > 0 ? std::min(share, allowed) : share);
}

}  // namespace gradientflow
