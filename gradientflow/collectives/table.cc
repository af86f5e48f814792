#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

using Row = const CollectiveAlgorithm*;
using namespace collectives;

constexpr Row kBroadcasts[] = {&kTreeBroadcast, &kChainBroadcast,
                               &kScatterAllgatherBroadcast, &kSharedBroadcast};
constexpr Row kReduces[] = {&kDirectReduce, &kBinomialReduce, &kChainReduce,
                            &kSharedReduce};
constexpr Row kAllgathers[] = {&kDirectAllgather, &kRingAllgather,
                               &kDoublingAllgather, &kSharedAllgather};
constexpr Row kReduceScatters[] = {&kDirectReduceScatter, &kRingReduceScatter,
                                   &kHalvingReduceScatter,
                                   &kSharedReduceScatter};
constexpr Row kAllToAlls[] = {&kPairwiseAllToAll, &kBruckAllToAll,
                              &kSharedAllToAll};
constexpr Row kGathers[] = {&kDirectGather, &kBinomialGather, &kSharedGather};
constexpr Row kScatters[] = {&kDirectScatter, &kBinomialScatter,
                             &kSharedScatter};
constexpr Row kBarriers[] = {&kDisseminationBarrier};

}  // namespace

std::span<const Row> AlgorithmsOf(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllreduce:
      return allreduce::kTable;
    case CollectiveKind::kBroadcast:
      return kBroadcasts;
    case CollectiveKind::kReduce:
      return kReduces;
    case CollectiveKind::kAllgather:
      return kAllgathers;
    case CollectiveKind::kReduceScatter:
      return kReduceScatters;
    case CollectiveKind::kAllToAll:
      return kAllToAlls;
    case CollectiveKind::kGather:
      return kGathers;
    case CollectiveKind::kScatter:
      return kScatters;
    case CollectiveKind::kBarrier:
      return kBarriers;
  }
  return {};
}

}  // namespace gradientflow
