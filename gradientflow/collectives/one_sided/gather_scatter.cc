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

// All ranks show their parts, which the root copies.
Schedule MakeGather(int rank, const CallShape& shape, std::size_t /*count*/) {
  const Begins begins = BeginsOf(shape.parts);
  std::vector<Action> actions;
  for (int r = 0; rank == shape.root && r < shape.size; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const std::size_t part = shape.parts[i];
    AppendPull(rank, r, Input(0, part), Data(begins[i], part), &actions);
  }
  return OneSided(shape, Input(0, shape.parts[static_cast<std::size_t>(rank)]),
                  *std::max_element(shape.parts.begin(), shape.parts.end()),
                  std::move(actions));
}

Price GatherPrice(const CallQuestion& question, double bytes) {
  return OneSidedPrice(question, bytes, (question.size() - 1) * bytes);
}

// The root shows all parts, and each rank copies its own.
Schedule MakeScatter(int rank, const CallShape& shape, std::size_t /*count*/) {
  const Begins begins = BeginsOf(shape.parts);
  const auto i = static_cast<std::size_t>(rank);
  std::vector<Action> actions;
  AppendPull(rank, shape.root, Input(begins[i], shape.parts[i]),
             Data(0, shape.parts[i]), &actions);
  return OneSided(shape, Input(0, rank == shape.root ? begins.back() : 0),
                  begins.back(), std::move(actions));
}

Price ScatterPrice(const CallQuestion& question, double bytes) {
  return OneSidedPrice(question, question.size() * bytes, bytes);
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kSharedGather = {
    .name = "shared",
    .make = &MakeGather,
    .price = &GatherPrice,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .stand_in = &collectives::kDirectGather,
    .whole = true,
};
constinit const CollectiveAlgorithm collectives::kSharedScatter = {
    .name = "shared",
    .make = &MakeScatter,
    .price = &ScatterPrice,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .stand_in = &collectives::kDirectScatter,
    .whole = true,
};

}  // namespace gradientflow
