#pragma once

#include <string>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// Two processes without a launcher agree who is rank 0: the one to whose host
// `address` ("host:port") belongs or, if both are there, the first one.
struct PairRank {
  int rank = 0;
  // Rank 0 holds it while it lives: the UDP port of the same number, which says
  // that rank 0 is taken. The other rank has none.
  Fd taken;
};

// Returns kInvalidArgument if the address cannot be resolved, with the reason.
Result<PairRank> FindPairRank(const std::string& address);

}  // namespace gradientflow
