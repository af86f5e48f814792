#pragma once

#include "gradientflow/collectives/allreduce/algorithm.h"

// The list of all allreduce algorithms. To add one, define it in a file of its
// own in this folder and add it to both lists below.
// gradientflow/docs/algorithms.md describes each of them.
namespace gradientflow::allreduce {

// Each algorithm is defined in the file of its name.
extern const AllreduceAlgorithm kShared;
extern const AllreduceAlgorithm kTwoLevel;
extern const AllreduceAlgorithm kRing;
extern const AllreduceAlgorithm kHalvingDoubling;
extern const AllreduceAlgorithm kTwoSync;
extern const AllreduceAlgorithm kOneRound;

// If two algorithms have the same predicted time, the first in this list wins.
inline constexpr const AllreduceAlgorithm* kTable[] = {
    &kShared, &kTwoLevel, &kRing, &kHalvingDoubling, &kTwoSync, &kOneRound,
};

}  // namespace gradientflow::allreduce
