#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/cost_model.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Which schedule an allreduce runs. See gradientflow/docs/algorithms.md.
enum class AllreduceAlgorithm : std::uint8_t {
  kAuto,  // Whatever ChooseAllreduce says.
  kRing,
  kHalvingDoubling,
  kTwoSync,
  kOneRound,
  kShared,
  kTwoLevel,
};

// "auto", "ring", "halving_doubling", "two_sync", "one_round", "shared",
// "two_level".
const char* Name(AllreduceAlgorithm algorithm);
// The reverse. kInvalidArgument, with all names, for anything else.
Result<AllreduceAlgorithm> ParseAllreduceAlgorithm(std::string_view name);

struct AllreduceQuestion {
  int size = 1;
  Topology topology;  // Empty, or `size` hosts.
  std::size_t count = 0;
  std::size_t wire_element_bytes = 4;
  CostModel model;
  bool all_share_memory = false;    // kShared is possible.
  bool hosts_share_memory = false;  // kTwoLevel may be one-sided inside.
};

struct AllreduceChoice {
  AllreduceAlgorithm algorithm = AllreduceAlgorithm::kRing;
  double seconds = 0;  // As predicted.
  // For traces: "two_sync 0.81 ms (ring 1.2, ...): 4194304 bytes, 4 ranks".
  std::string reason;
};

// What `algorithm` is predicted to take, in seconds; infinite if it is not
// possible. REQUIRES algorithm != kAuto.
double PredictAllreduce(AllreduceAlgorithm algorithm,
                        const AllreduceQuestion& question);

// The algorithm with the least predicted time; among equals the first of
// shared, two_level, ring, halving_doubling, two_sync, one_round. Pure: equal
// questions have equal answers, so ranks that ask the same agree.
AllreduceChoice ChooseAllreduce(const AllreduceQuestion& question);

// Rank `rank`'s part of an allreduce of `count` elements by topology.host's
// ranks, or by `size` of them, each on its own host, if that is empty.
// `one_sided` matters to kTwoLevel only. REQUIRES algorithm != kAuto, and for
// kShared that all ranks share memory.
struct AllreduceShape {
  int size = 1;
  Topology topology;
  bool one_sided = false;
};
Schedule MakeAllreduce(AllreduceAlgorithm algorithm, int rank,
                       const AllreduceShape& shape, std::size_t count);

}  // namespace gradientflow
