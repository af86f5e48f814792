#pragma once

#include "gradientflow/collectives/algorithm.h"

// The list of all allreduce algorithms. To add one, define it in a file of its
// own in this folder and add it to both lists below.
// gradientflow/docs/algorithms.md describes each of them.
namespace gradientflow::allreduce {

// Each algorithm is defined in the file of its name.
extern const CollectiveAlgorithm kShared;
extern const CollectiveAlgorithm kTwoLevel;
extern const CollectiveAlgorithm kRing;
extern const CollectiveAlgorithm kHalvingDoubling;
extern const CollectiveAlgorithm kGdraa;
extern const CollectiveAlgorithm kTwoSync;
extern const CollectiveAlgorithm kOneRound;
extern const CollectiveAlgorithm kOneSync;

// If two algorithms have the same predicted time, the first in this list wins.
inline constexpr const CollectiveAlgorithm* kTable[] = {
    &kShared, &kTwoLevel, &kRing,     &kHalvingDoubling,
    &kGdraa,  &kTwoSync,  &kOneRound, &kOneSync,
};

}  // namespace gradientflow::allreduce
