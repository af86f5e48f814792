#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/one_sided/exchange.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// The root shows its buffer, which all others copy.
Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  const bool root = rank == shape.root;
  const Slice all = Data(0, count);
  std::vector<Action> actions;
  if (!root) AppendPull(rank, shape.root, all, all, &actions);
  return OneSided(shape, Data(0, root ? count : 0), count, std::move(actions));
}

Price PriceOf(const CallQuestion& question, double bytes) {
  return OneSidedPrice(question, bytes, bytes);
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kSharedBroadcast = {
    .name = "shared",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .stand_in = &collectives::kTreeBroadcast,
};

}  // namespace gradientflow
