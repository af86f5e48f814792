#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/allreduce/reuse.h"
#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// Every rank sends block b of its input straight to rank b, which sums the
// contributions to its own block in rank order.
Schedule MakeDirect(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  const int size = shape.size;
  const Group group = AllRanks(rank, size);
  const auto block = [&](int b) {
    return Input(static_cast<std::size_t>(b) * count, count);
  };
  const Slice result = Data(0, count);
  if (size == 1) {
    AppendRound({Copy(block(0), result)}, &schedule);
    return schedule;
  }
  std::vector<Action> round;
  for (int hop = 1; hop < size; ++hop) {
    const int to = group.Place(hop);
    const int from = group.Place(-hop);
    round.push_back(Send(to, block(to)));
    round.push_back(Recv(from, LandingOf(from, rank, count)));
  }
  NeedScratch(count * static_cast<std::size_t>(size - 1), &schedule);
  AppendReduceMany({size - 1, rank, block(rank)}, result, /*is_final=*/true,
                   &round);
  AppendRound(std::move(round), &schedule);
  return schedule;
}

// Block b begins at the rank behind rank b in the ring of hosts, and comes to b
// last. In each hop a rank adds its own contribution to the sum that came from
// its left neighbour, and sends it on in the next hop.
Schedule MakeRing(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  schedule.multi_hop = true;
  const Group ring = RingOfHosts(rank, shape.size, shape.topology);
  const auto own = [&](int hops) {
    return Input(static_cast<std::size_t>(ring.Member(hops)) * count, count);
  };
  if (shape.size == 1) {
    AppendRound({Copy(own(0), Data(0, count))}, &schedule);
    return schedule;
  }
  const Slice landing = Scratch(0, count);
  const Slice sum = Scratch(count, count);
  NeedScratch(2 * count, &schedule);
  for (int hop = 1; hop < shape.size; ++hop) {
    const bool last = hop + 1 == shape.size;
    Action send = Send(ring.Member(1), hop == 1 ? own(-1) : sum);
    send.raw = hop == 1;
    Action reduce;
    reduce.kind = Action::Kind::kReduce;
    reduce.src = landing;
    reduce.dst = last ? Data(0, count) : sum;
    reduce.raw = true;
    reduce.final = last;
    AppendRound({send, Recv(ring.Member(-1), landing),
                 Copy(own(-1 - hop), reduce.dst), reduce},
                &schedule);
  }
  return schedule;
}

// Source: the first half of Patarasuk & Yuan, JPDC 2009.
Price RingReduceScatterPrice(const CallQuestion& question, double bytes) {
  Price price;
  if (question.size() == 1) return price;
  const double crossing = question.hosts.ring();
  price.Add(question.size() - 1, {1, bytes, crossing * bytes, 2 * bytes},
            question.RingHop(1));
  return price;
}

// Recursive halving: the allgather of Bruck et al. run backwards, for any
// number of ranks. Offset i of rank r stands for block r + i, counted around.
// A rank has sums for the offsets below `have + blocks`, sends those from
// `have` on to the rank `have` places above, where they are the first ones, and
// adds what comes from below to its own first ones. In the end each rank has
// the sum of offset 0. The sums are in scratch: sums first, then a landing.
class Halving {
 public:
  Halving(int rank, int size, std::size_t count)
      : rank_(rank),
        size_(size),
        count_(count),
        begins_(BeginsOf(size, count)) {
    while (have_ * 2 < size) have_ *= 2;
    landing_ = static_cast<std::size_t>(have_) * count;
    schedule_.multi_hop = true;
    NeedScratch(2 * landing_, &schedule_);
  }

  Schedule Make() {
    if (size_ == 1) {
      AppendRound({Copy(Input(0, count_), Data(0, count_))}, &schedule_);
      return std::move(schedule_);
    }
    for (; have_ >= 1; have_ /= 2) AppendExchange();
    AppendRound({Copy(Scratch(0, count_), Data(0, count_))}, &schedule_);
    return std::move(schedule_);
  }

 private:
  // Offsets [first, end) of `rank`, cut where its contribution is untouched
  // (raw) and where the blocks of its input go around. All cuts are known to
  // the receiver, too.
  struct Piece {
    int first = 0;
    bool raw = false;
    Slice slice;
  };
  std::vector<Piece> Cut(int rank, int first, int end) const {
    std::vector<Piece> pieces;
    const int summed = std::min(end, summed_);
    if (first < summed) {
      pieces.push_back({first, false, Sums(first, summed - first)});
    }
    int at = std::max(first, summed_);
    if (at >= end) return pieces;
    for (const Slice& slice :
         Around(Slice::Space::kInput, begins_, (rank + at) % size_, end - at)) {
      pieces.push_back({at, true, slice});
      at += static_cast<int>(slice.count / count_);
    }
    return pieces;
  }

  Slice Sums(int first, int blocks) const {
    return Scratch(static_cast<std::size_t>(first) * count_,
                   static_cast<std::size_t>(blocks) * count_);
  }

  void AppendExchange() {
    const int blocks = std::min(have_, size_ - have_);
    const int from = (rank_ + size_ - have_) % size_;
    std::vector<Action> round;
    for (const Piece& piece : Cut(rank_, have_, have_ + blocks)) {
      round.push_back(Send((rank_ + have_) % size_, piece.slice));
      round.back().raw = piece.raw;
    }
    std::size_t landed = landing_;
    for (const Piece& piece : Cut(from, have_, have_ + blocks)) {
      round.push_back(Recv(from, Scratch(landed, piece.slice.count)));
      landed += piece.slice.count;
    }
    for (const Piece& piece : Cut(rank_, 0, blocks)) {
      Action reduce;
      reduce.kind = Action::Kind::kReduce;
      reduce.dst = Scratch(static_cast<std::size_t>(piece.first) * count_,
                           piece.slice.count);
      reduce.src = Scratch(landing_ + reduce.dst.offset, piece.slice.count);
      reduce.raw = piece.raw;
      reduce.final = have_ == 1;
      if (piece.raw) round.push_back(Copy(piece.slice, reduce.dst));
      round.push_back(reduce);
    }
    AppendRound(std::move(round), &schedule_);
    summed_ = std::max(summed_, blocks);
  }

  const int rank_;
  const int size_;
  const std::size_t count_;
  const Begins begins_;
  std::size_t landing_ = 0;
  int have_ = 1;
  int summed_ = 0;  // Offsets below this one are sums of several ranks.
  Schedule schedule_;
};

Schedule MakeHalving(int rank, const CallShape& shape, std::size_t count) {
  if (count == 0) return {};
  return Halving(rank, shape.size, count).Make();
}

Price HalvingPrice(const CallQuestion& question, double bytes) {
  const HostMap& hosts = question.hosts;
  Price price;
  for (int k = hosts.doublings() - 1; k >= 0; --k) {
    const double blocks = std::min(1 << k, hosts.size() - (1 << k));
    const double sent = blocks * bytes;
    const double line = hosts.Shift(k) * sent;
    const bool first = k + 1 == hosts.doublings();
    price.Add(1, {first ? 2.0 : 1.0, sent, line, (first ? 2 : 1) * sent},
              question.Hop(hosts.Shift(k)));
  }
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kDirectReduceScatter = {
    .name = "direct",
    .make = &MakeDirect,
    // Each rank sends every other one a block, and adds up as many.
    .price = &OneRoundPrice,
    .all_peers = true,
};
constinit const CollectiveAlgorithm collectives::kRingReduceScatter = {
    .name = "ring",
    .make = &MakeRing,
    .price = &RingReduceScatterPrice,
    .partial_sums = true,
};
constinit const CollectiveAlgorithm collectives::kHalvingReduceScatter = {
    .name = "halving",
    .make = &MakeHalving,
    .price = &HalvingPrice,
    .partial_sums = true,
    .whole = true,
};

}  // namespace gradientflow
