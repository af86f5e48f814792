#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Once all gradients are there, every rank reduces its block straight from all
// buffers and stores the result to all of them: nothing is copied, and stores
// find their cache lines where the loads left them. (A buffer that peers cannot
// reach is copied, but for the rank's own block.)
Schedule SharedAllreduce(int rank, int size, std::size_t count) {
  if (size > kMaxReduceParties) return TwoSyncAllreduce(rank, size, count);
  Schedule schedule;
  if (size == 1 || count == 0) return schedule;
  Step reduce;
  reduce.kind = Step::Kind::kPullReduce;
  reduce.dst = Data(BlockOf(count, size, rank));
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

}  // namespace gradientflow
