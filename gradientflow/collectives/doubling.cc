#include "gradientflow/collectives/doubling.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "gradientflow/collectives/group.h"

namespace gradientflow {

Begins BeginsOf(int size, std::size_t count) {
  Begins begins;
  for (int b = 0; b <= size; ++b) {
    begins.push_back(static_cast<std::size_t>(b) * count);
  }
  return begins;
}

Begins BeginsOf(const std::vector<std::size_t>& parts) {
  Begins begins = {0};
  for (const std::size_t part : parts) begins.push_back(begins.back() + part);
  return begins;
}

std::vector<Slice> Around(Slice::Space space, const Begins& begins, int first,
                          int count) {
  const int size = static_cast<int>(begins.size()) - 1;
  std::vector<Slice> slices;
  const auto add = [&](int from, int to) {
    const std::size_t begin = begins[static_cast<std::size_t>(from)];
    const std::size_t end = begins[static_cast<std::size_t>(to)];
    if (end > begin) slices.push_back({space, begin, end - begin});
  };
  first %= size;
  add(first, std::min(first + count, size));
  if (first + count > size) add(0, first + count - size);
  return slices;
}

std::vector<Doubling> Doublings(int rank, int size) {
  std::vector<Doubling> rounds;
  const bool swaps = std::has_single_bit(static_cast<unsigned>(size));
  for (int have = 1; have < size; have *= 2) {
    Doubling round;
    round.blocks = std::min(have, size - have);
    if (swaps) {
      round.to = round.from = rank ^ have;
      round.sent_first = rank & -have;
      round.received_first = round.to & -have;
    } else {
      round.to = (rank + size - have) % size;
      round.from = (rank + have) % size;
      round.sent_first = rank;
      round.received_first = round.from;
    }
    rounds.push_back(round);
  }
  return rounds;
}

void AppendDoublings(int rank, int size, int root, bool rooted,
                     const Begins& begins, Schedule* schedule) {
  const int place = (rank - root + size) % size;
  bool first = true;
  for (const Doubling& round : Doublings(place, size)) {
    std::vector<Action> actions;
    if (!rooted || round.to != 0) {
      for (const Slice& slice : Around(Slice::Space::kData, begins,
                                       round.sent_first, round.blocks)) {
        actions.push_back(Send((round.to + root) % size, slice));
        actions.back().settle = first;
      }
    }
    if (!rooted || place != 0) {
      for (const Slice& slice : Around(Slice::Space::kData, begins,
                                       round.received_first, round.blocks)) {
        actions.push_back(Recv((round.from + root) % size, slice));
      }
    }
    first = false;
    AppendRound(std::move(actions), schedule);
  }
}

// A range of blocks that wraps around takes two messages. A range of n blocks
// wraps around on n - 1 ranks.
void AddDoublings(const CallQuestion& question, double block_bytes,
                  Price* price) {
  const HostMap& hosts = question.hosts;
  const int size = hosts.size();
  const bool swaps = hosts.core() == size;
  for (int k = 0; k < hosts.doublings(); ++k) {
    const int blocks = std::min(1 << k, size - (1 << k));
    const double bytes = blocks * block_bytes;
    const double crossing = swaps ? hosts.Swap(k) : hosts.Shift(k);
    const double messages = swaps ? 1 : 1 + double(blocks - 1) / size;
    price->Add(1, {messages, bytes, crossing * bytes, 0},
               question.Hop(crossing));
  }
}

void AddBranches(const CallQuestion& question, int k, const Traffic& traffic,
                 Price* price) {
  const double far = question.hosts.Branch(k);
  const double share = question.hosts.BranchShare(k);
  if (far > 0) price->Add(far, traffic, question.Over(1, share));
  Traffic near = traffic;
  near.line_bytes = 0;
  if (far < 1) price->Add(1 - far, near, question.Over(0, share));
}

Price PriceOfChain(const CallQuestion& question, const Traffic& traffic) {
  Price price;
  if (question.size() == 1) return price;
  const double far = question.hosts.hosts() - 1;
  const double share = 1.0 / question.size();
  // The part of the hops that have a segment, on average over the call.
  const double hops = question.size() - 1;
  const double segments =
      std::max(1.0, static_cast<double>(question.count) *
                        static_cast<double>(question.wire_element_bytes) /
                        std::max(traffic.bytes, 1.0));
  const double at_work =
      std::min({segments / (segments + hops - 1), question.window / hops, 1.0});
  Price one;
  one.Add(1, traffic, question.Over(far, at_work));
  price.Add(far, traffic, question.Over(1, share));
  price.Add(question.size() - 1 - far, traffic, question.Over(0, share));
  price.busy = one.busy;
  return price;
}

TreeNode TreeNodeOf(int rank, int size, int root) {
  TreeNode node;
  node.place = (rank - root + size) % size;
  const auto rank_at = [&](int place) { return (place + root) % size; };
  // The parent of a place is that place without its lowest set bit; the
  // children of a place add one lower bit to it.
  int lowest = 1;
  while (lowest < size && (node.place & lowest) == 0) lowest *= 2;
  if (node.place != 0) node.parent = rank_at(node.place - lowest);
  node.subtree = std::min(lowest, size - node.place);
  for (int bit = lowest / 2; bit >= 1; bit /= 2) {
    const int child = node.place + bit;
    if (child >= size) continue;
    node.children.push_back(
        {rank_at(child), child, std::min(bit, size - child)});
  }
  return node;
}

}  // namespace gradientflow
