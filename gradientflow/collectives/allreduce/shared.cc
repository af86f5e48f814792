#include "gradientflow/collectives/allreduce/flat.h"
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
Schedule Make(int rank, const AllreduceShape& shape, std::size_t count) {
  Schedule schedule;
  if (shape.size == 1 || count == 0) return schedule;
  Step reduce;
  reduce.kind = Step::Kind::kPullReduce;
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
double Predict(const AllreduceQuestion& question) {
  if (question.size == 1) return 0;
  const LinkModel& link = question.model.inside;
  return 2 * link.latency_seconds +
         2 * BytesOf(question) * link.reduce_seconds_per_byte;
}

}  // namespace

constinit const AllreduceAlgorithm allreduce::kShared = {
    .name = "shared",
    .make = &Make,
    .predict = &Predict,
    .memory = AllreduceAlgorithm::Memory::kMustShare,
    .max_ranks = kMaxReduceParties,
    .stand_in = &allreduce::kTwoSync,
};

}  // namespace gradientflow
