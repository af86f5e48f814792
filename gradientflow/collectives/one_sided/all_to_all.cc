#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/one_sided/exchange.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// All ranks show their inputs; rank r copies part r of each, beginning with its
// own input.
Schedule Make(int rank, const CallShape& shape, std::size_t /*count*/) {
  const std::size_t part = shape.parts.front();
  const Group group = AllRanks(rank, shape.size);
  std::vector<Action> actions;
  for (int hop = 0; hop < shape.size; ++hop) {
    const int from = group.Place(hop);
    AppendPull(rank, from, Input(static_cast<std::size_t>(rank) * part, part),
               Data(static_cast<std::size_t>(from) * part, part), &actions);
  }
  const std::size_t all = static_cast<std::size_t>(shape.size) * part;
  return OneSided(shape, Input(0, all), all, std::move(actions));
}

Price PriceOf(const CallQuestion& question, double bytes) {
  return OneSidedPrice(question, question.size() * bytes,
                       (question.size() - 1) * bytes);
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kSharedAllToAll = {
    .name = "shared",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .stand_in = &collectives::kPairwiseAllToAll,
    .whole = true,
    .equal_counts = true,
};

}  // namespace gradientflow
