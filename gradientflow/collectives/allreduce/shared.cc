#include <cstddef>

#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

// Once all ranks have come to the first sync, every rank reduces its block
// straight from the buffers of all ranks and stores the result to all of them.
// Nothing is copied, and the stores hit the cache lines that the loads brought
// in. A rank whose buffer its peers cannot reach works in a copy; only its own
// block is left out of that copy.
Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  if (shape.size == 1 || count == 0) return schedule;
  Action reduce;
  reduce.kind = Action::Kind::kPullReduce;
  reduce.dst = Data(BlockOf(count, shape.size, rank));
  reduce.raw = true;
  reduce.final = true;
  reduce.push = true;
  reduce.last = true;
  schedule.untouched = reduce.dst;
  AppendRound({Sync()}, &schedule);
  AppendRound({reduce}, &schedule);
  AppendRound({Sync()}, &schedule);
  return schedule;
}

// Source: arXiv 1802.02326, with one-sided access.
Price PriceOf(const CallQuestion& question, double bytes) {
  Price price;
  if (question.size() == 1) return price;
  price.AddSyncs(2, 2 * bytes, question.model.inside);
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm allreduce::kShared = {
    .name = "shared",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .max_ranks = kMaxReduceParties,
    .stand_in = &allreduce::kTwoSync,
};

}  // namespace gradientflow
