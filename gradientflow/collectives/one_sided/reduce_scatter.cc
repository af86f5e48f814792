#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/one_sided/exchange.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// All ranks show their inputs; each adds its own block of them, in rank order.
Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  const auto size = static_cast<std::size_t>(shape.size);
  const Slice block = Input(static_cast<std::size_t>(rank) * count, count);
  const Slice sum = Data(0, count);
  return OneSided(shape, Input(0, size * count), size * count,
                  {size == 1 ? Copy(block, sum) : SumOf(block, sum)});
}

Price PriceOf(const CallQuestion& question, double bytes) {
  const double all = question.size() * bytes;
  return OneSidedPrice(question, all, all);
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kSharedReduceScatter = {
    .name = "shared",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .max_ranks = kMaxReduceParties,
    .stand_in = &collectives::kDirectReduceScatter,
};

}  // namespace gradientflow
