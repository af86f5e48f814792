#pragma once

#include <span>

#include "gradientflow/collectives/algorithm.h"
#include "gradientflow/collectives/allreduce/table.h"

// The list of all algorithms, by collective; gradientflow/docs/algorithms.md
// describes them. To add one, define it in the file of its collective, declare
// it here and list it in table.cc. Those named kShared... are in one_sided/.
// Allreduces have a table of their own.
namespace gradientflow {
namespace collectives {

// Copies `root`'s kData to the kData of every rank.
extern const CollectiveAlgorithm kTreeBroadcast;
extern const CollectiveAlgorithm kChainBroadcast;
extern const CollectiveAlgorithm kScatterAllgatherBroadcast;
extern const CollectiveAlgorithm kSharedBroadcast;

// Reduce kInput of `count` elements on every rank into `root`'s kData. Other
// ranks have no kData. kDirectReduce adds in rank order, kBinomialReduce in an
// order that does not depend on the root either.
extern const CollectiveAlgorithm kDirectReduce;
extern const CollectiveAlgorithm kBinomialReduce;
extern const CollectiveAlgorithm kChainReduce;
extern const CollectiveAlgorithm kSharedReduce;

// Gather kInput of `count` elements, or of parts[rank], into the kData of every
// rank, where the blocks lie in rank order. A rank's own block is rounded to
// the wire dtype, too.
extern const CollectiveAlgorithm kDirectAllgather;
extern const CollectiveAlgorithm kRingAllgather;
extern const CollectiveAlgorithm kDoublingAllgather;
extern const CollectiveAlgorithm kSharedAllgather;

// kInput has size * count elements. Reduce block `rank` of it into kData of
// `count` elements. kDirectReduceScatter adds in rank order.
extern const CollectiveAlgorithm kDirectReduceScatter;
extern const CollectiveAlgorithm kRingReduceScatter;
extern const CollectiveAlgorithm kHalvingReduceScatter;
extern const CollectiveAlgorithm kSharedReduceScatter;

// kInput holds the elements for rank 0, 1, ... one behind another, parts of
// them; kData receives the elements from rank 0, 1, ... in the same way.
// REQUIRE parts[rank] == recv_parts[rank]. kBruckAllToAll and kSharedAllToAll:
// all parts of all ranks are equal.
extern const CollectiveAlgorithm kPairwiseAllToAll;
extern const CollectiveAlgorithm kBruckAllToAll;
extern const CollectiveAlgorithm kSharedAllToAll;

// Rank r brings parts[r] elements in kInput; the root's kData holds all of them
// in rank order. A scatter is the inverse.
extern const CollectiveAlgorithm kDirectGather;
extern const CollectiveAlgorithm kBinomialGather;
extern const CollectiveAlgorithm kSharedGather;
extern const CollectiveAlgorithm kDirectScatter;
extern const CollectiveAlgorithm kBinomialScatter;
extern const CollectiveAlgorithm kSharedScatter;

// ceil(log2 size) rounds of one-element messages. kData has one int8 element,
// whose value does not matter.
extern const CollectiveAlgorithm kDisseminationBarrier;

}  // namespace collectives

// All algorithms of a collective. If two have the same predicted time, the
// first in the list wins.
std::span<const CollectiveAlgorithm* const> AlgorithmsOf(CollectiveKind kind);

}  // namespace gradientflow
