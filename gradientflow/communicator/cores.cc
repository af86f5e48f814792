#include "gradientflow/communicator/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

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

int HostCores() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int HostRanks(const CallGroup& group) {
  return static_cast<int>(std::count(group.topology.host.begin(),
                                     group.topology.host.end(),
                                     group.topology.host[group.rank]));
}

int CoresOf(const CallGroup& group) {
  const int share = HostCores() / HostRanks(group);
  const int allowed = AllowedCores();
  return std::max(1, allowed > 0 ? std::min(share, allowed) : share);
}

}  // namespace gradientflow
