#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

Schedule DirectGather(int rank, int root,
                      const std::vector<std::size_t>& counts) {
  Schedule schedule;
  std::vector<Step> round;
  const Slice mine = Input(0, counts[static_cast<std::size_t>(rank)]);
  if (rank != root) {
    AppendRound({Send(root, mine)}, &schedule);
    return schedule;
  }
  std::size_t begin = 0;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
    const Slice place = Data(begin, counts[static_cast<std::size_t>(r)]);
    round.push_back(r == root ? Copy(mine, place) : Recv(r, place));
    begin += place.count;
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Schedule DirectScatter(int rank, int root,
                       const std::vector<std::size_t>& counts) {
  Schedule schedule;
  std::vector<Step> round;
  const Slice mine = Data(0, counts[static_cast<std::size_t>(rank)]);
  if (rank != root) {
    AppendRound({Recv(root, mine)}, &schedule);
    return schedule;
  }
  std::size_t begin = 0;
  for (int r = 0; r < static_cast<int>(counts.size()); ++r) {
    const Slice place = Input(begin, counts[static_cast<std::size_t>(r)]);
    round.push_back(r == root ? Copy(place, mine) : Send(r, place));
    begin += place.count;
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

}  // namespace gradientflow
