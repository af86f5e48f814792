#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

Slice BlockAt(int rank, std::size_t count) {
  return Data(static_cast<std::size_t>(rank) * count, count);
}

}  // namespace

// In hop k each rank passes on the block that it received in hop k - 1, so
// after size - 1 hops every rank has every block. A rank sends its own block
// from its place in the output, where the send can round it to the wire dtype.
Schedule RingAllgather(int rank, int size, std::size_t count) {
  Schedule schedule;
  const Group group = AllRanks(rank, size);
  AppendRound({Copy(Input(0, count), BlockAt(rank, count))}, &schedule);
  for (int k = 0; k < size - 1; ++k) {
    Step send = Send(group.Place(1), BlockAt(group.Place(-k), count));
    send.settle = k == 0;
    AppendRound(
        {send, Recv(group.Place(-1), BlockAt(group.Place(-k - 1), count))},
        &schedule);
  }
  return schedule;
}

// Every rank sends its block straight to every other rank, in one round.
Schedule DirectAllgather(int rank, int size, std::size_t count) {
  Schedule schedule;
  const Group group = AllRanks(rank, size);
  const Slice mine = BlockAt(rank, count);
  AppendRound({Copy(Input(0, count), mine)}, &schedule);
  std::vector<Step> round;
  for (int hop = 1; hop < size; ++hop) {
    const int from = group.Place(-hop);
    round.push_back(Send(group.Place(hop), mine));
    round.back().settle = hop == 1;
    round.push_back(Recv(from, BlockAt(from, count)));
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Schedule DirectAllgatherOfParts(int rank,
                                const std::vector<std::size_t>& counts) {
  Schedule schedule;
  const int size = static_cast<int>(counts.size());
  const Group group = AllRanks(rank, size);
  std::vector<Slice> parts;
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    parts.push_back(Data(begin, count));
    begin += count;
  }
  const Slice mine = parts[static_cast<std::size_t>(rank)];
  AppendRound({Copy(Input(0, mine.count), mine)}, &schedule);
  std::vector<Step> round;
  for (int hop = 1; hop < size; ++hop) {
    const int from = group.Place(-hop);
    round.push_back(Send(group.Place(hop), mine));
    round.push_back(Recv(from, parts[static_cast<std::size_t>(from)]));
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

}  // namespace gradientflow
