#pragma once

#include "gradientflow/collectives/allreduce/algorithm.h"

// Every allreduce there is. To add one, define it in a file of its own in this
// folder, and add it to both lists; gradientflow/docs/algorithms.md says how.
namespace gradientflow::allreduce {

// Each is defined in the file of its name.
extern const AllreduceAlgorithm kShared;
extern const AllreduceAlgorithm kTwoLevel;
extern const AllreduceAlgorithm kRing;
extern const AllreduceAlgorithm kHalvingDoubling;
extern const AllreduceAlgorithm kTwoSync;
extern const AllreduceAlgorithm kOneRound;

// Where two are predicted to take the same time, the first is chosen.
inline constexpr const AllreduceAlgorithm* kTable[] = {
    &kShared, &kTwoLevel, &kRing, &kHalvingDoubling, &kTwoSync, &kOneRound,
};

}  // namespace gradientflow::allreduce
