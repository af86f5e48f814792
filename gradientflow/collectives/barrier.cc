#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// In round k every rank tells the one 2^k further on that it, and all it has
// heard of, are there: after ceil(log2 size) rounds it has heard of all.
Schedule DisseminationBarrier(int rank, int size) {
  Schedule schedule;
  const Group group = AllRanks(rank, size);
  for (int hop = 1; hop < size; hop *= 2) {
    // Lands aside: the same byte is on its way out.
    AppendRound({Send(group.Place(hop), Data(0, 1)),
                 Recv(group.Place(-hop), Scratch(0, 1))},
                &schedule);
    NeedScratch(1, &schedule);
  }
  return schedule;
}

}  // namespace gradientflow
