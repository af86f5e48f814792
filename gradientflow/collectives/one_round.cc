#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Everyone sends everything to everyone; all add the same numbers in the same
// order. That takes one's own contribution as the others see it: rounded.
void AppendOneRound(const Group& group, Block range, OneRound how,
                    Schedule* schedule) {
  const int size = group.size();
  if (size == 1) return;
  const Slice all = Data(range);
  NeedScratch(range.count * static_cast<std::size_t>(size - 1), schedule);
  std::vector<Step> round;
  for (int hop = 1; hop < size; ++hop) {
    const int to = group.Place(hop);
    const int from = group.Place(-hop);
    round.push_back(Send(group.members[static_cast<std::size_t>(to)], all));
    round.back().settle = hop == 1;
    round.push_back(Recv(group.members[static_cast<std::size_t>(from)],
                         LandingOf(from, group.me, range.count)));
  }
  AppendReduceMany({size - 1, group.me, all}, all, /*is_final=*/true, &round);
  round.back().raw = how.raw;
  round.back().last = how.last;
  AppendRound(std::move(round), schedule);
}

Schedule OneRoundAllreduce(int rank, int size, std::size_t count) {
  // Summing in batches, own first, would differ from rank to rank.
  if (size > kMaxReduceParties) return TwoSyncAllreduce(rank, size, count);
  Schedule schedule;
  AppendOneRound(AllRanks(rank, size), {0, count}, {.raw = true, .last = true},
                 &schedule);
  return schedule;
}

}  // namespace gradientflow
