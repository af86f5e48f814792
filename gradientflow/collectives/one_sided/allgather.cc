#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/one_sided/exchange.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// Every rank shows its block and copies those of all ranks, beginning with its
// own and then with the one after it, so that not all ranks read the same.
Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  const Begins begins =
      shape.parts.empty() ? BeginsOf(shape.size, count) : BeginsOf(shape.parts);
  const auto part = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return Data(begins[i], begins[i + 1] - begins[i]);
  };
  const Group group = AllRanks(rank, shape.size);
  std::size_t most = 0;
  std::vector<Action> actions;
  for (int hop = 0; hop < shape.size; ++hop) {
    const int from = group.Place(hop);
    const Slice block = part(from);
    most = std::max(most, block.count);
    AppendPull(rank, from, Input(0, block.count), block, &actions);
  }
  return OneSided(shape, Input(0, part(rank).count), most, std::move(actions));
}

Price PriceOf(const CallQuestion& question, double bytes) {
  return OneSidedPrice(question, bytes, (question.size() - 1) * bytes);
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kSharedAllgather = {
    .name = "shared",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .stand_in = &collectives::kDirectAllgather,
};

}  // namespace gradientflow
