#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Who takes part in an allreduce. `topology` names the host of each rank.
struct AllreduceShape {
  int size = 1;
  Topology topology = {};
  bool one_sided = false;  // The schedule may use kSync, kPullReduce, kPush.
};

// An allreduce whose time is wanted. `topology` names the host of each rank.
struct AllreduceQuestion {
  int size = 1;
  Topology topology;
  std::size_t count = 0;  // Elements.
  std::size_t wire_element_bytes = 4;
  CostModel model;
  bool all_share_memory = false;
  bool hosts_share_memory = false;  // The ranks of each host do.
};

// One way to run an allreduce: all that the library knows about it. Each one
// is defined in a file of its own and listed in table.h; settings, help, the
// chooser, the executor and the tests take it from there.
struct AllreduceAlgorithm {
  enum class Memory : std::uint8_t {
    kMessages,   // The schedule sends messages only.
    kMayShare,   // It is one-sided inside hosts whose ranks share memory.
    kMustShare,  // It is one-sided, so all ranks must share memory.
  };

  // As settings and reports spell it. Unique; lower case.
  const char* name;
  // Rank `rank`'s part of an allreduce of `count` elements of kData, in place;
  // afterwards all ranks hold the same bits. The k-th message from a rank to a
  // peer matches the peer's k-th receive from it. Pure.
  // REQUIRES 0 <= rank < shape.size <= max_ranks.
  Schedule (*make)(int rank, const AllreduceShape& shape, std::size_t count);
  // The predicted time in seconds; infinite if the algorithm is no sensible
  // choice there. Pure, so that ranks with equal questions agree.
  double (*predict)(const AllreduceQuestion& question);
  Memory memory = Memory::kMessages;
  int max_ranks = std::numeric_limits<int>::max();
  // What runs instead where `memory` or `max_ranks` rule this one out. It adds
  // in the same order, so that results do not depend on which of them ran.
  const AllreduceAlgorithm* stand_in = nullptr;
  // Whether the next round's receives into kData may be posted while a round
  // still runs: what arrives early then needs no copy. True only if no rank
  // sends a block to this one before it has taken in this rank's share of that
  // block, so that nothing here still reads what the receive overwrites.
  bool receives_early = false;
};

}  // namespace gradientflow
