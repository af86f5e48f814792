#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// The ranks that take part in an allreduce. `topology` names the host of each
// rank.
struct AllreduceShape {
  int size = 1;
  Topology topology = {};
  bool one_sided = false;  // The schedule may use kSync, kPullReduce and kPush.
};

// An allreduce whose duration is to be predicted. `topology` names the host of
// each rank.
struct AllreduceQuestion {
  int size = 1;
  Topology topology;
  std::size_t count = 0;  // Elements of the buffer.
  std::size_t wire_element_bytes = 4;
  CostModel model;
  bool all_share_memory = false;
  bool hosts_share_memory = false;  // Ranks of one host share memory.
};

// One way to run an allreduce: everything the library knows about it. Each
// algorithm is defined in a file of its own and listed in table.h. The
// settings, the help text, the chooser, the executor and the tests all read
// that table.
struct AllreduceAlgorithm {
  enum class Memory : std::uint8_t {
    kMessages,   // The schedule only sends messages.
    kMayShare,   // One-sided inside hosts whose ranks share memory.
    kMustShare,  // One-sided everywhere: all ranks must share memory.
  };

  // The name in settings and reports: unique, in lower case.
  const char* name;
  // Returns rank `rank`'s part of an in-place allreduce of `count` elements of
  // kData. When it has run, all ranks hold the same bits. The k-th message from
  // a rank to a peer matches the peer's k-th receive from that rank. A pure
  // function. REQUIRES 0 <= rank < shape.size <= max_ranks.
  Schedule (*make)(int rank, const AllreduceShape& shape, std::size_t count);
  // Returns the predicted time in seconds, or infinity if the algorithm makes
  // no sense for the question. A pure function, so ranks with equal questions
  // agree.
  double (*predict)(const AllreduceQuestion& question);
  Memory memory = Memory::kMessages;
  int max_ranks = std::numeric_limits<int>::max();
  // The algorithm that runs where `memory` or `max_ranks` rule this one out. It
  // adds in the same order, so results do not depend on which of the two ran.
  const AllreduceAlgorithm* stand_in = nullptr;
  // True if the receives of the next round into kData may be posted while a
  // round still runs, so that data that arrives early needs no copy. An
  // algorithm may set it only if no rank sends a block to this rank before it
  // has received this rank's contribution to that block: otherwise the receive
  // would overwrite data that is still to be sent.
  bool receives_early = false;
};

}  // namespace gradientflow
