#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

Schedule DirectReduceScatter(int rank, int size, std::size_t count) {
  Schedule schedule;
  const Group group = AllRanks(rank, size);
  // Every rank sends block b of its input straight to rank b, which sums the
  // contributions to its own block in rank order.
  const auto block = [&](int b) {
    return Input(static_cast<std::size_t>(b) * count, count);
  };
  const Slice result = Data(0, count);
  if (size == 1) {
    AppendRound({Copy(block(0), result)}, &schedule);
    return schedule;
  }
  std::vector<Step> round;
  for (int hop = 1; hop < size; ++hop) {
    const int to = group.Place(hop);
    const int from = group.Place(-hop);
    round.push_back(Send(to, block(to)));
    round.push_back(Recv(from, LandingOf(from, rank, count)));
  }
  NeedScratch(count * static_cast<std::size_t>(size - 1), &schedule);
  AppendReduceMany({size - 1, rank, block(rank)}, result, /*is_final=*/true,
                   &round);
  AppendRound(std::move(round), &schedule);
  return schedule;
}

}  // namespace gradientflow
