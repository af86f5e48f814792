#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Every rank sends block b straight to rank b, which sums it in rank order and
// sends the sum, rounded once, to every rank. Staggered: rank r starts with
// r + 1, so that no two ranks hit the same peer first.
Schedule TwoSyncAllreduce(int rank, int size, std::size_t count) {
  Schedule schedule;
  if (size == 1) return schedule;
  const Group group = AllRanks(rank, size);
  const auto block = [&](int b) { return Data(BlockOf(count, size, b)); };
  const Slice mine = block(rank);
  NeedScratch(mine.count * static_cast<std::size_t>(size - 1), &schedule);

  std::vector<Step> collect;
  std::vector<Step> spread;
  for (int hop = 1; hop < size; ++hop) {
    const int to = group.Place(hop);
    const int from = group.Place(-hop);
    collect.push_back(Send(to, block(to)));
    collect.push_back(Recv(from, LandingOf(from, rank, mine.count)));
    spread.push_back(Send(to, mine));
    spread.back().settle = spread.back().last = hop == 1;
    spread.back().relay = hop > 1;
    spread.push_back(Recv(from, block(from)));
  }
  AppendReduceMany({size - 1, rank, mine}, mine, /*is_final=*/true, &collect);
  AppendRound(std::move(collect), &schedule);
  AppendRound(std::move(spread), &schedule);
  return schedule;
}

}  // namespace gradientflow
