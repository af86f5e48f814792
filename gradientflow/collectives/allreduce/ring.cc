#include <cstddef>

#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/allreduce/table.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/schedule.h"

namespace gradientflow {

// The buffer is cut into `size` blocks. In round k member m sends block m - k
// to its right neighbour and adds the block m - k - 1 that comes from its left
// neighbour. After size - 1 rounds it holds the sum of block m + 1 and rounds
// it to the wire dtype as it sends it; another size - 1 rounds pass the
// finished blocks around.
void AppendRing(const Group& group, Extent range, bool raw,
                Schedule* schedule) {
  const int size = group.size();
  if (size == 1) return;
  const int right = group.Member(1);
  const int left = group.Member(-1);
  const auto block = [&](int hops) {
    return Data(SubBlock(range, size, group.Place(hops)));
  };
  const auto parts = static_cast<std::size_t>(size);
  NeedScratch((range.count + parts - 1) / parts, schedule);

  for (int k = 0; k < size - 1; ++k) {
    const Slice in = block(-k - 1);
    Action send = Send(right, block(-k));
    send.raw = raw && k == 0;
    Action reduce;
    reduce.kind = Action::Kind::kReduce;
    reduce.src = Scratch(0, in.count);
    reduce.dst = in;
    reduce.raw = raw;
    reduce.final = k == size - 2;
    AppendRound({send, Recv(left, reduce.src), reduce}, schedule);
  }
  for (int k = 0; k < size - 1; ++k) {
    Action send = Send(right, block(1 - k));
    send.settle = send.last = k == 0;
    send.relay = k > 0;
    AppendRound({send, Recv(left, block(-k))}, schedule);
  }
}

// Source: Patarasuk & Yuan, JPDC 2009.
Price RingPrice(const CallQuestion& question, double bytes) {
  const int size = question.size();
  Price price;
  if (size == 1) return price;
  const double block = bytes / size;
  const double line = question.hosts.ring() * block;
  const LinkModel hop = question.RingHop(2, question.Filled(bytes, size));
  price.Add(size - 1, {1, block, line, block}, hop);
  price.Add(size - 1, {1, block, line, 0}, hop);
  return price;
}

namespace {

Schedule Make(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  schedule.multi_hop = true;
  AppendRing(RingOfHosts(rank, shape.size, shape.topology), {0, count},
             /*raw=*/true, &schedule);
  return schedule;
}

}  // namespace

constinit const CollectiveAlgorithm allreduce::kRing = {
    .name = "ring",
    .make = &Make,
    .price = &RingPrice,
    .receives_early = true,
    .least_messages = true,
};

}  // namespace gradientflow
