#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/exchange.h"
#include "gradientflow/config/options.h"
#include "gradientflow/observe/logger.h"
#include "transports/arena.h"
#include "transports/fabric.h"

namespace gradientflow {

// The ranks, joined: links to all of them, and the memory shared with some.
struct Transport {
  std::shared_ptr<void> keep_alive;  // What the arena belongs to.
  SharedArena* arena = nullptr;      // Null if no rank shares memory.
  std::unique_ptr<Fabric> fabric;
  CallGroup group;
};

struct JoinArgs {
  const Options* options = nullptr;
  // Lines "name=value" that must not differ between ranks.
  std::string agreement;
  const Clock* clock = nullptr;
  Logger* logger = nullptr;
  Exchange exchange;  // In place of the rendezvous; may be empty.
};

// Meets the other ranks at the rendezvous, compares what must be equal, and
// connects to each by the best transport that the options allow: by default
// shared memory to the ranks of this host, TCP to the others. Blocks until all
// are there. kInvalidArgument: the ranks differ (names the rank and the line);
// kDeadlineExceeded: names who did not come.
Result<Transport> Join(const JoinArgs& args);

}  // namespace gradientflow
