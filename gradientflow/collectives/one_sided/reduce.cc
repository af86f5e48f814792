#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/one_sided/exchange.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// All ranks show their inputs, which the root adds in rank order.
Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  const Slice mine = Input(0, count);
  const Slice sum = Data(0, count);
  std::vector<Action> actions;
  if (shape.size == 1) {
    actions.push_back(Copy(mine, sum));
  } else if (rank == shape.root) {
    actions.push_back(SumOf(mine, sum));
  }
  return OneSided(shape, mine, count, std::move(actions));
}

Price PriceOf(const CallQuestion& question, double bytes) {
  return OneSidedPrice(question, bytes, question.size() * bytes);
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kSharedReduce = {
    .name = "shared",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .max_ranks = kMaxReduceParties,
    .stand_in = &collectives::kDirectReduce,
};

}  // namespace gradientflow
