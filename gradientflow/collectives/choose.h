#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/allreduce/algorithm.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/schedule.h"

// Chooses which allreduce to run. An algorithm is identified by its row in
// allreduce/table.h. The null pointer means "auto": the algorithm that
// ChooseAllreduce() picks. All functions are pure and may be called on any
// thread.
namespace gradientflow {

// Returns the name of the row, or "auto" for null.
const char* Name(const AllreduceAlgorithm* algorithm);
// The inverse of Name(). Returns kInvalidArgument, with a list of all names,
// for any other text.
Result<const AllreduceAlgorithm*> ParseAllreduceAlgorithm(
    std::string_view name);
// Returns "auto, shared, ... or one_round", in static storage.
std::string_view AllreduceNames();

// Returns `algorithm` if `size` ranks can run it, else the algorithm that
// stands in for it. `all_share` says whether all of the ranks share memory.
const AllreduceAlgorithm* RunnableAllreduce(const AllreduceAlgorithm* algorithm,
                                            int size, bool all_share);

struct AllreduceChoice {
  const AllreduceAlgorithm* algorithm = nullptr;
  double seconds = 0;  // Predicted.
  // A line for traces: "two_sync 0.81 ms (ring 1.2, ...): 4194304 bytes, 4
  // ranks".
  std::string reason;
};

// Returns the predicted time of `algorithm` in seconds, or infinity if the
// ranks cannot run it or it makes no sense for them. An empty topology puts
// every rank on a host of its own.
double PredictAllreduce(const AllreduceAlgorithm& algorithm,
                        const AllreduceQuestion& question);

// Returns the algorithm with the least predicted time; among equals, the first
// in the table. Ranks that ask equal questions get equal answers. An empty
// topology puts every rank on a host of its own.
AllreduceChoice ChooseAllreduce(const AllreduceQuestion& question);

// Returns rank `rank`'s part of an allreduce of `count` elements among
// shape.size ranks. An empty topology puts every rank on a host of its own.
// REQUIRES algorithm == RunnableAllreduce(algorithm, ...).
Schedule MakeAllreduce(const AllreduceAlgorithm& algorithm, int rank,
                       const AllreduceShape& shape, std::size_t count);

}  // namespace gradientflow
