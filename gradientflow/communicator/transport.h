#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/communicator/cores.h"
#include "gradientflow/communicator/exchange.h"
#include "gradientflow/config/options.h"
#include "gradientflow/observe/logger.h"
#include "transports/arena.h"
#include "transports/fabric.h"
#include "transports/remote_places.h"
#include "transports/remote_writes.h"

namespace gradientflow {

// The ranks after joining: links to all of them, and memory shared with some.
struct Transport {
  std::vector<std::shared_ptr<void>> keep_alive;  // The owners of memory.
  SharedArena* arena = nullptr;  // Null if no rank shares memory.
  // Null if this rank writes to the memory of no other.
  RemotePlaces* places = nullptr;
  // True if it writes to the memory of all others or, if ranks of a host share
  // memory, of all those on other hosts. It may be false although `group` says
  // all_place or hosts_place, because not every rank knows of that yet.
  bool places_all = false;
  // Counts what this rank's links write into its peers' memory; null if none
  // does.
  WriteCounter* writes = nullptr;
  // False if this rank is linked to some rank of its host by TCP, although
  // `group` says that hosts share memory: not every rank knows of that yet.
  bool shares = true;
  std::unique_ptr<Fabric> fabric;
  // The address by which other ranks can link to this one later. They have to
  // learn it if the fabric has a LinkSource.
  std::string address;
  CallGroup group;  // As the ranks met. The executor has what they agree on.
  // This rank's place on its real host; if it is unset, LocalPlaceIn(group).
  std::optional<LocalPlace> local;
};

// The TCP connections between two ranks that carry data, with these options.
int ConnectionsPerPeer(const Options& options);

struct JoinArgs {
  const Options* options = nullptr;
  // Lines "name=value" that must not differ between ranks.
  std::string agreement;
  const Clock* clock = nullptr;
  Logger* logger = nullptr;
  Exchange exchange;  // Replaces the rendezvous; may be empty.
};

// Meets the other ranks at the rendezvous, compares what must be equal, and
// connects to each rank by the best transport that the options allow: by
// default shared memory to the ranks of this host, and to the others RDMA where
// both have it, else TCP. Blocks until all ranks are connected. Returns
// kInvalidArgument, with the rank and the line, if the ranks differ, and
// kDeadlineExceeded with the ranks that did not come.
Result<Transport> Join(const JoinArgs& args);

}  // namespace gradientflow
