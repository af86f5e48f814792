#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

// A rank exchanges with this many peers at a time: enough to hide the latency
// of one behind the others, few enough that no receiver is flooded.
constexpr int kPeersPerRound = 4;

std::vector<std::size_t> Offsets(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(),
                      std::size_t{0});
  return offsets;
}

}  // namespace

Schedule PairwiseAllToAll(int rank, const std::vector<std::size_t>& send_counts,
                          const std::vector<std::size_t>& recv_counts) {
  Schedule schedule;
  const int size = static_cast<int>(send_counts.size());
  const Group group = AllRanks(rank, size);
  const auto send_offsets = Offsets(send_counts);
  const auto recv_offsets = Offsets(recv_counts);
  const auto out = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return Input(send_offsets[i], send_counts[i]);
  };
  const auto in = [&](int r) {
    const auto i = static_cast<std::size_t>(r);
    return Data(recv_offsets[i], recv_counts[i]);
  };
  // In hop h every rank sends to the rank h places after it and receives from
  // the rank h places before it, so no two ranks send to the same peer in one
  // hop.
  std::vector<Step> round{Copy(out(rank), in(rank))};
  for (int first = 1; first < size; first += kPeersPerRound) {
    for (int hop = first; hop < std::min(size, first + kPeersPerRound); ++hop) {
      const int to = group.Place(hop);
      const int from = group.Place(-hop);
      round.push_back(Send(to, out(to)));
      round.push_back(Recv(from, in(from)));
    }
    AppendRound(std::exchange(round, {}), &schedule);
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

}  // namespace gradientflow
