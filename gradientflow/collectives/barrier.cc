#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// In round k every rank sends a message to the rank 2^k places after it. The
// message says that the sender, and every rank it has heard of, has arrived.
// After ceil(log2 size) rounds each rank has heard of all of them.
Schedule DisseminationBarrier(int rank, int size) {
  Schedule schedule;
  const Group group = AllRanks(rank, size);
  for (int hop = 1; hop < size; hop *= 2) {
    // The message is received into scratch, because the byte in kData is being
    // sent at the same time.
    AppendRound({Send(group.Place(hop), Data(0, 1)),
                 Recv(group.Place(-hop), Scratch(0, 1))},
                &schedule);
    NeedScratch(1, &schedule);
  }
  return schedule;
}

}  // namespace gradientflow
