#pragma once

#include "gradientflow/collectives/call_plan.h"

// How the ranks of a host share its cores.
namespace gradientflow {

// Cores of this host; at least 1.
int HostCores();

// A rank among the ranks of its host, in the order of their ranks.
struct LocalPlace {
  int rank = 0;
  int ranks = 1;
};

// This rank's place if each host of the group's topology is a host, and not a
// part of one (see GroupOf() in neighbours.h).
LocalPlace LocalPlaceIn(const CallGroup& group);

// This rank's share: the host's cores divided by its ranks, but no more than
// this thread may run on; at least 1.
int CoresOf(const LocalPlace& local);

// Threads that share a pass over host memory, for a rank with that share of the
// host's cores. `setting` is compute_threads.
int ComputeThreads(int setting, int cores);

}  // namespace gradientflow
