#include <cstddef>

#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

// Up to about this size one sync is cheaper than what the copies cost. At 4 KiB
// two ranks took 1.1 us with a core each, and 2.5 us on two threads of a core;
// by `shared`, which has the next price, they took 0.9 and 2.7 us.
constexpr std::size_t kMostBytes = std::size_t{4} << 10;

// Every rank copies its buffer to where its peers can read it, and after the
// only sync adds all copies, in rank order. So small buffers wait for their
// peers once, and it does not matter whether they are in shared memory.
Schedule Make(int /*rank*/, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  if (shape.size == 1 || count == 0) return schedule;
  const Slice all = Data(0, count);
  Action reduce = SumOf(all, all);
  reduce.last = true;
  schedule.shown = all;
  schedule.mailed = true;
  AppendRound({Sync()}, &schedule);
  AppendRound({reduce}, &schedule);
  return schedule;
}

Price PriceOf(const CallQuestion& question, double bytes) {
  Price price;
  const double size = question.size();
  if (size == 1) return price;
  const std::size_t all = question.count * question.wire_element_bytes;
  if (all > kMostBytes) return ImpossiblePrice();
  price.AddSyncs(1, (size + 1) * bytes, question.model.inside);
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm allreduce::kOneSync = {
    .name = "one_sync",
    .make = &Make,
    .price = &PriceOf,
    .memory = CollectiveAlgorithm::Memory::kMustShare,
    .max_ranks = kMaxReduceParties,
    .stand_in = &allreduce::kOneRound,
    .most_segment_bytes = kMailBytes,
};

}  // namespace gradientflow
