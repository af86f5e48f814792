#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

std::size_t PartOf(int rank, const CallShape& shape) {
  return shape.parts[static_cast<std::size_t>(rank)];
}

Schedule MakeDirectGather(int rank, const CallShape& shape, std::size_t) {
  Schedule schedule;
  std::vector<Action> round;
  const Slice mine = Input(0, PartOf(rank, shape));
  if (rank != shape.root) {
    AppendRound({Send(shape.root, mine)}, &schedule);
    return schedule;
  }
  std::size_t begin = 0;
  for (int r = 0; r < shape.size; ++r) {
    const Slice place = Data(begin, PartOf(r, shape));
    round.push_back(r == rank ? Copy(mine, place) : Recv(r, place));
    begin += place.count;
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Schedule MakeDirectScatter(int rank, const CallShape& shape, std::size_t) {
  Schedule schedule;
  std::vector<Action> round;
  const Slice mine = Data(0, PartOf(rank, shape));
  if (rank != shape.root) {
    AppendRound({Recv(shape.root, mine)}, &schedule);
    return schedule;
  }
  std::size_t begin = 0;
  for (int r = 0; r < shape.size; ++r) {
    const Slice place = Input(begin, PartOf(r, shape));
    round.push_back(r == rank ? Copy(place, mine) : Send(r, place));
    begin += place.count;
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Price DirectPrice(const CallQuestion& question, double bytes) {
  const double others = question.size() - 1;
  Price price;
  if (others == 0) return price;
  const double line = question.size() - question.hosts.largest();
  // Parts inside the root's host do not pass its line.
  const double sent = (line > 0 ? line : others) * bytes;
  price.Add(1, {others, sent, 0, 0},
            question.OneWayToAll(line, 1.0 / question.size()));
  return price;
}

// How a node of a binomial tree keeps the parts of its subtree: the root in its
// buffer, where they lie in rank order and may go past the last rank and around
// to the first; all others in scratch, in the order of their places. A message
// to or from the root has one slice or two, which the child's side has to know.
class Subtree {
 public:
  Subtree(int rank, const CallShape& shape)
      : shape_(shape), node_(TreeNodeOf(rank, shape.size, shape.root)) {
    std::vector<std::size_t> parts;
    for (int i = 0; i < node_.subtree; ++i) {
      parts.push_back(PartOf((rank + i) % shape.size, shape));
    }
    mine_ = BeginsOf(parts);
    all_ = BeginsOf(shape.parts);
  }

  const TreeNode& node() const { return node_; }
  bool is_root() const { return node_.parent < 0; }
  std::size_t elements() const { return mine_.back(); }

  // The parts of a child's subtree, where this rank keeps them.
  std::vector<Slice> OfChild(const TreeNode::Child& child,
                             Slice::Space root_space) const {
    if (is_root()) return Around(root_space, all_, child.rank, child.subtree);
    return Around(Slice::Space::kScratch, mine_, child.place - node_.place,
                  child.subtree);
  }

  // This rank's whole subtree, cut as its parent cuts it.
  std::vector<Slice> Whole() const {
    std::vector<Slice> slices;
    if (node_.parent != shape_.root) {
      slices.push_back(Scratch(0, elements()));
      return slices;
    }
    std::size_t begin = 0;
    const int rank = (node_.place + shape_.root) % shape_.size;
    for (const Slice& cut :
         Around(Slice::Space::kScratch, all_, rank, node_.subtree)) {
      slices.push_back(Scratch(begin, cut.count));
      begin += cut.count;
    }
    return slices;
  }

 private:
  const CallShape& shape_;
  const TreeNode node_;
  Begins mine_;  // Of the subtree's parts, by place.
  Begins all_;   // Of all parts, by rank.
};

// Every node collects the parts of its subtree, then sends them to its parent.
Schedule MakeBinomialGather(int rank, const CallShape& shape, std::size_t) {
  Schedule schedule;
  const Subtree tree(rank, shape);
  const Slice mine = Input(0, PartOf(rank, shape));
  const Slice kept =
      tree.is_root()
          ? Data(BeginsOf(shape.parts)[static_cast<std::size_t>(rank)],
                 mine.count)
          : Scratch(0, mine.count);
  std::vector<Action> round = {Copy(mine, kept)};
  for (const TreeNode::Child& child : tree.node().children) {
    for (const Slice& slice : tree.OfChild(child, Slice::Space::kData)) {
      round.push_back(Recv(child.rank, slice));
    }
  }
  AppendRound(std::exchange(round, {}), &schedule);
  if (tree.is_root()) return schedule;
  NeedScratch(tree.elements(), &schedule);
  for (const Slice& slice : tree.Whole()) {
    round.push_back(Send(tree.node().parent, slice));
  }
  AppendRound(std::move(round), &schedule);
  return schedule;
}

// The same backwards.
Schedule MakeBinomialScatter(int rank, const CallShape& shape, std::size_t) {
  Schedule schedule;
  const Subtree tree(rank, shape);
  const Slice mine = Data(0, PartOf(rank, shape));
  std::vector<Action> round;
  if (!tree.is_root()) {
    for (const Slice& slice : tree.Whole()) {
      round.push_back(Recv(tree.node().parent, slice));
    }
    AppendRound(std::exchange(round, {}), &schedule);
    NeedScratch(tree.elements(), &schedule);
  }
  for (const TreeNode::Child& child : tree.node().children) {
    for (const Slice& slice : tree.OfChild(child, Slice::Space::kInput)) {
      round.push_back(Send(child.rank, slice));
    }
  }
  const std::size_t begin =
      BeginsOf(shape.parts)[static_cast<std::size_t>(rank)];
  round.push_back(
      Copy(tree.is_root() ? Input(begin, mine.count) : Scratch(0, mine.count),
           mine));
  AppendRound(std::move(round), &schedule);
  return schedule;
}

Price BinomialPrice(const CallQuestion& question, double bytes) {
  const HostMap& hosts = question.hosts;
  Price price;
  for (int k = 0; k < hosts.doublings(); ++k) {
    const double sent = bytes * std::min(1 << k, hosts.size() - (1 << k));
    AddBranches(question, k, {1, sent}, &price);
  }
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kDirectGather = {
    .name = "direct",
    .make = &MakeDirectGather,
    .price = &DirectPrice,
    .all_peers = true,
};
constinit const CollectiveAlgorithm collectives::kBinomialGather = {
    .name = "binomial",
    .make = &MakeBinomialGather,
    .price = &BinomialPrice,
    .whole = true,
};
constinit const CollectiveAlgorithm collectives::kDirectScatter = {
    .name = "direct",
    .make = &MakeDirectScatter,
    .price = &DirectPrice,
    .all_peers = true,
};
constinit const CollectiveAlgorithm collectives::kBinomialScatter = {
    .name = "binomial",
    .make = &MakeBinomialScatter,
    .price = &BinomialPrice,
    .whole = true,
};

}  // namespace gradientflow
