#include <cstddef>

#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// In round k every rank sends a message to the rank 2^k places after it. The
// message says that the sender, and every rank it has heard of, has arrived.
// After ceil(log2 size) rounds each rank has heard of all of them.
Schedule Make(int rank, const CallShape& shape, std::size_t) {
  Schedule schedule;
  const Group group = AllRanks(rank, shape.size);
  for (int hop = 1; hop < shape.size; hop *= 2) {
    // The message is received into scratch, because the byte in kData is being
    // sent at the same time.
    AppendRound({Send(group.Place(hop), Data(0, 1)),
                 Recv(group.Place(-hop), Scratch(0, 1))},
                &schedule);
    NeedScratch(1, &schedule);
  }
  return schedule;
}

// Source: Hensgen, Finkel & Manber, IJPP 1988.
Price PriceOf(const CallQuestion& question, double) {
  Price price;
  for (int k = 0; k < question.hosts.doublings(); ++k) {
    price.Add(1, {}, question.Hop(question.hosts.Shift(k)));
  }
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kDisseminationBarrier = {
    .name = "dissemination",
    .make = &Make,
    .price = &PriceOf,
    .whole = true,
};

}  // namespace gradientflow
