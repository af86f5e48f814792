#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Every rank sends its whole input to the root, which sums in rank order.
Schedule DirectReduce(int rank, int size, int root, std::size_t count) {
  Schedule schedule;
  const Slice mine = Input(0, count);
  if (rank != root) {
    AppendRound({Send(root, mine)}, &schedule);
    return schedule;
  }
  if (size == 1) {
    AppendRound({Copy(mine, Data(0, count))}, &schedule);
    return schedule;
  }
  std::vector<Step> round;
  for (int from = 0; from < size; ++from) {
    if (from != root) round.push_back(Recv(from, LandingOf(from, root, count)));
  }
  NeedScratch(count * static_cast<std::size_t>(size - 1), &schedule);
  AppendReduceMany({size - 1, root, mine}, Data(0, count), /*is_final=*/true,
                   &round);
  AppendRound(std::move(round), &schedule);
  return schedule;
}

}  // namespace gradientflow
