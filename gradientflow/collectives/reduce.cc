#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// Every rank sends its whole input to the root, which sums in rank order.
Schedule MakeDirect(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  const int size = shape.size;
  const int root = shape.root;
  const Slice mine = Input(0, count);
  if (rank != root) {
    AppendRound({Send(root, mine)}, &schedule);
    return schedule;
  }
  if (size == 1) {
    AppendRound({Copy(mine, Data(0, count))}, &schedule);
    return schedule;
  }
  std::vector<Action> round;
  for (int from = 0; from < size; ++from) {
    if (from != root) round.push_back(Recv(from, LandingOf(from, root, count)));
  }
  NeedScratch(count * static_cast<std::size_t>(size - 1), &schedule);
  AppendReduceMany({size - 1, root, mine}, Data(0, count), /*is_final=*/true,
                   &round);
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Price DirectPrice(const CallQuestion& question, double bytes) {
  const double p = question.size();
  Price price;
  if (p == 1) return price;
  const double line = p - question.hosts.largest();
  price.Add(1, {p - 1, (p - 1) * bytes, line * bytes, p * bytes},
            question.OneWayToAll(line, 1 / p));
  return price;
}

// One rank's part of a reduction along a tree: it adds the sums of some ranks,
// one after another, to its own contribution, and sends the result on to `to`,
// or keeps it if that is -1.
Schedule AddAndPassOn(const std::vector<int>& from, int to, std::size_t count) {
  Schedule schedule;
  schedule.multi_hop = true;
  const Slice mine = Input(0, count);
  const Slice landing = Scratch(0, count);
  const Slice sum = to < 0 ? Data(0, count) : Scratch(count, count);
  for (std::size_t i = 0; i < from.size(); ++i) {
    Action reduce;
    reduce.kind = Action::Kind::kReduce;
    reduce.src = landing;
    reduce.dst = sum;
    reduce.raw = i == 0;
    reduce.final = to < 0 && i + 1 == from.size();
    std::vector<Action> round = {Recv(from[i], landing), reduce};
    if (i == 0) round.insert(round.begin() + 1, Copy(mine, sum));
    AppendRound(std::move(round), &schedule);
    NeedScratch(to < 0 ? count : 2 * count, &schedule);
  }
  if (to >= 0) {
    Action send = Send(to, from.empty() ? mine : sum);
    send.raw = from.empty();
    AppendRound({send}, &schedule);
  } else if (from.empty()) {
    AppendRound({Copy(mine, Data(0, count))}, &schedule);
  }
  return schedule;
}

// Neighbouring ranges of 1, 2, 4, ... ranks are summed to one. The sum of a
// range is with the root if the root is in the range, else with the range's
// first rank. So the order of the additions does not depend on the root.
Schedule MakeBinomial(int rank, const CallShape& shape, std::size_t count) {
  const auto holder = [&](int first, int ranks) {
    return first <= shape.root && shape.root < first + ranks ? shape.root
                                                             : first;
  };
  std::vector<int> from;
  int to = -1;
  for (int ranks = 1; ranks < shape.size && to < 0; ranks *= 2) {
    const int first = rank & -(2 * ranks);
    const int second = first + ranks;
    if (second >= shape.size) continue;
    const int sum = holder(first, 2 * ranks);
    const int other = holder(rank < second ? second : first, ranks);
    if (sum == rank) {
      from.push_back(other);
    } else {
      to = sum;
    }
  }
  return AddAndPassOn(from, to, count);
}

Price BinomialPrice(const CallQuestion& question, double bytes) {
  Price price;
  for (int k = 0; k < question.hosts.doublings(); ++k) {
    AddBranches(question, k, {1, bytes, 0, bytes}, &price);
  }
  return price;
}

// The ring of hosts without the hop into the root. The farthest rank begins;
// each adds its own and sends the sum one place nearer to the root. Segments
// follow each other down the chain.
Schedule MakeChain(int rank, const CallShape& shape, std::size_t count) {
  const Group ring = RingOfHosts(rank, shape.size, shape.topology);
  std::vector<int> from;
  if (ring.Member(1) != shape.root) from.push_back(ring.Member(1));
  return AddAndPassOn(from, rank == shape.root ? -1 : ring.Member(-1), count);
}

Price ChainPrice(const CallQuestion& question, double bytes) {
  return PriceOfChain(question, {1, bytes, 0, bytes});
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kDirectReduce = {
    .name = "direct",
    .make = &MakeDirect,
    .price = &DirectPrice,
    .all_peers = true,
    .lands_all = true,
};
constinit const CollectiveAlgorithm collectives::kBinomialReduce = {
    .name = "binomial",
    .make = &MakeBinomial,
    .price = &BinomialPrice,
    .partial_sums = true,
};
constinit const CollectiveAlgorithm collectives::kChainReduce = {
    .name = "chain",
    .make = &MakeChain,
    .price = &ChainPrice,
    .partial_sums = true,
    .passes_on = true,
};

}  // namespace gradientflow
