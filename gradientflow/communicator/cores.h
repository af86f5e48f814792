#pragma once

#include "gradientflow/collectives/call_plan.h"

// How the ranks of a host share its cores.
namespace gradientflow {

// Cores of this host; at least 1.
int HostCores();

// Ranks on this rank's host, this one included.
int HostRanks(const CallGroup& group);

// This rank's share: the host's cores divided by its ranks, but no more than
// this thread may run on; at least 1.
int CoresOf(const CallGroup& group);

}  // namespace gradientflow
