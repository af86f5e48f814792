#include <utility>
#include <vector>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {
namespace {

// A rank's place is its distance from the root, counted upwards and around.
int RankAt(int place, int root, int size) { return (place + root) % size; }
int PlaceOf(int rank, int root, int size) {
  return (rank - root + size) % size;
}

}  // namespace

// Binomial tree. The parent of a place is that place without its lowest set
// bit; the children of a place add one lower bit to it. The child with the
// largest subtree is served first.
Schedule TreeBroadcast(int rank, int size, int root, std::size_t count) {
  Schedule schedule;
  const int place = PlaceOf(rank, root, size);
  const Slice all = Data(0, count);
  int lowest = 1;
  while (lowest < size && (place & lowest) == 0) lowest *= 2;
  if (place != 0) {
    AppendRound({Recv(RankAt(place - lowest, root, size), all)}, &schedule);
  }
  std::vector<Step> sends;
  for (int bit = lowest / 2; bit >= 1; bit /= 2) {
    if (place + bit >= size) continue;
    sends.push_back(Send(RankAt(place + bit, root, size), all));
    sends.back().settle = place == 0 && sends.size() == 1;
  }
  AppendRound(std::move(sends), &schedule);
  return schedule;
}

// Each rank passes the buffer on to the next place. The executor runs one such
// schedule per segment, so the segments follow each other down the chain.
Schedule ChainBroadcast(int rank, int size, int root, std::size_t count) {
  Schedule schedule;
  const int place = PlaceOf(rank, root, size);
  const Slice all = Data(0, count);
  if (place > 0) {
    AppendRound({Recv(RankAt(place - 1, root, size), all)}, &schedule);
  }
  if (place + 1 < size) {
    Step send = Send(RankAt(place + 1, root, size), all);
    send.settle = place == 0;
    AppendRound({send}, &schedule);
  }
  return schedule;
}

}  // namespace gradientflow
