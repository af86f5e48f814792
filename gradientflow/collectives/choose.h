#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gradientflow/base/status.h"
#include "gradientflow/collectives/allreduce/algorithm.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/schedule.h"

// Which allreduce to run. An algorithm is known by its row in
// allreduce/table.h; the null pointer is "auto", whatever ChooseAllreduce()
// says. All functions are pure and may be called on any thread.
namespace gradientflow {

// The row's name; "auto" for null.
const char* Name(const AllreduceAlgorithm* algorithm);
// The reverse. kInvalidArgument, with all names, for anything else.
Result<const AllreduceAlgorithm*> ParseAllreduceAlgorithm(
    std::string_view name);
// "auto, shared, ... or one_round". Static storage.
std::string_view AllreduceNames();

// `algorithm` if `size` ranks, of which `all_share` says whether all of them
// share memory, can run it; else what stands in for it.
const AllreduceAlgorithm* RunnableAllreduce(const AllreduceAlgorithm* algorithm,
                                            int size, bool all_share);

struct AllreduceChoice {
  const AllreduceAlgorithm* algorithm = nullptr;
  double seconds = 0;  // As predicted.
  // For traces: "two_sync 0.81 ms (ring 1.2, ...): 4194304 bytes, 4 ranks".
  std::string reason;
};

// What `algorithm` is predicted to take, in seconds; infinite if the ranks
// cannot run it or it makes no sense there. An empty topology puts every rank
// on a host of its own.
double PredictAllreduce(const AllreduceAlgorithm& algorithm,
                        const AllreduceQuestion& question);

// The algorithm with the least predicted time; among equals the first of the
// table. Equal questions have equal answers, so ranks that ask the same agree.
// An empty topology puts every rank on a host of its own.
AllreduceChoice ChooseAllreduce(const AllreduceQuestion& question);

// Rank `rank`'s part of an allreduce of `count` elements by shape.size ranks.
// An empty topology puts every rank on a host of its own.
// REQUIRES algorithm == RunnableAllreduce(algorithm, ...).
Schedule MakeAllreduce(const AllreduceAlgorithm& algorithm, int rank,
                       const AllreduceShape& shape, std::size_t count);

}  // namespace gradientflow
