#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// Member m starts by sending block m; in round k it sends block m-k and takes
// block m-k-1 from its left. After size-1 rounds of reducing it holds block m+1
// in full, rounds it as it passes it on, and size-1 rounds spread the blocks.
void AppendRing(const Group& group, Block range, bool raw, Schedule* schedule) {
  const int size = group.size();
  if (size == 1) return;
  const auto member = [&](int place) {
    return group.members[static_cast<std::size_t>(place)];
  };
  const int right = member(group.Place(1));
  const int left = member(group.Place(-1));
  const auto block = [&](int hops) {
    return Data(SubBlock(range, size, group.Place(hops)));
  };
  const auto parts = static_cast<std::size_t>(size);
  NeedScratch((range.count + parts - 1) / parts, schedule);

  for (int k = 0; k < size - 1; ++k) {
    const Slice in = block(-k - 1);
    Step send = Send(right, block(-k));
    send.raw = raw && k == 0;
    Step reduce;
    reduce.kind = Step::Kind::kReduce;
    reduce.src = Scratch(0, in.count);
    reduce.dst = in;
    reduce.raw = raw;
    reduce.final = k == size - 2;
    AppendRound({send, Recv(left, reduce.src), reduce}, schedule);
  }
  for (int k = 0; k < size - 1; ++k) {
    Step send = Send(right, block(1 - k));
    send.settle = send.last = k == 0;
    send.relay = k > 0;
    AppendRound({send, Recv(left, block(-k))}, schedule);
  }
}

Schedule RingAllreduce(int rank, int size, std::size_t count) {
  Schedule schedule;
  schedule.multi_hop = true;
  AppendRing(AllRanks(rank, size), {0, count}, /*raw=*/true, &schedule);
  return schedule;
}

}  // namespace gradientflow
