#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/collectives/doubling.h"
#include "gradientflow/collectives/group.h"
#include "gradientflow/collectives/table.h"

namespace gradientflow {
namespace {

// Binomial tree. The child with the largest subtree is served first, and the
// next one after it: if they shared the line, all would have to wait for the
// last one.
Schedule MakeTree(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  const TreeNode node = TreeNodeOf(rank, shape.size, shape.root);
  const Slice all = Data(0, count);
  if (node.parent >= 0) AppendRound({Recv(node.parent, all)}, &schedule);
  for (const TreeNode::Child& child : node.children) {
    Action send = Send(child.rank, all);
    send.settle = node.place == 0 && &child == &node.children.front();
    AppendRound({send}, &schedule);
  }
  return schedule;
}

// What a connection sends before it hears from its peer: ten packets, TCP's
// first window (RFC 6928).
constexpr double kFirstWindowBytes = 14480;
// How much of a message may still be unsent when the next one begins. This is
// an assumption: it depends on the kernel's buffers.
constexpr double kUnsentBytes = 128 << 10;

// The last of the root's children gets its message last, and the first has the
// deepest subtree: both paths have as many messages as there are rounds. What
// the first window leaves of a message goes out together with the messages to
// the children after it. So a child with a subtree of 2^k also waits for as
// much of k other messages, except those that stay in the host.
Price TreePrice(const CallQuestion& question, double bytes) {
  const double shared =
      std::max(0.0, std::min(bytes, kUnsentBytes) - kFirstWindowBytes);
  Price price;
  Price in_turn;
  double others = 0;
  for (int k = 0; k < question.hosts.doublings(); ++k) {
    AddBranches(question, k, {1, bytes, bytes + others * shared}, &price);
    AddBranches(question, k, {1, bytes}, &in_turn);
    others += question.hosts.Branch(k);
  }
  // However they share the line, the root is done when all is sent.
  price.busy = in_turn.busy;
  price.terms += in_turn.terms;
  return price;
}

// Each rank passes the buffer on to the next one in the ring of hosts. The
// executor runs one such schedule per segment, so the segments follow each
// other down the chain.
Schedule MakeChain(int rank, const CallShape& shape, std::size_t count) {
  Schedule schedule;
  const Group ring = RingOfHosts(rank, shape.size, shape.topology);
  const Slice all = Data(0, count);
  if (rank != shape.root) AppendRound({Recv(ring.Member(-1), all)}, &schedule);
  if (ring.Member(1) != shape.root) {
    Action send = Send(ring.Member(1), all);
    send.settle = rank == shape.root;
    AppendRound({send}, &schedule);
  }
  return schedule;
}

Price ChainPrice(const CallQuestion& question, double bytes) {
  return PriceOfChain(question, {1, bytes});
}

// Down the tree each place gets the blocks of its subtree, then all places
// gather all blocks. The root needs none.
Schedule MakeScatterAllgather(int rank, const CallShape& shape,
                              std::size_t count) {
  Schedule schedule;
  const int size = shape.size;
  const TreeNode node = TreeNodeOf(rank, size, shape.root);
  Begins begins;
  for (int b = 0; b < size; ++b)
    begins.push_back(BlockOf(count, size, b).begin);
  begins.push_back(count);
  const auto blocks = [&](int place, int places) {
    return Around(Slice::Space::kData, begins, place, places);
  };
  if (node.parent >= 0) {
    for (const Slice& slice : blocks(node.place, node.subtree)) {
      AppendRound({Recv(node.parent, slice)}, &schedule);
    }
  }
  std::vector<Action> sends;
  for (const TreeNode::Child& child : node.children) {
    for (const Slice& slice : blocks(child.place, child.subtree)) {
      sends.push_back(Send(child.rank, slice));
      sends.back().settle = node.place == 0;
    }
  }
  AppendRound(std::move(sends), &schedule);
  AppendDoublings(rank, size, shape.root, /*rooted=*/true, begins, &schedule);
  return schedule;
}

// Source: van de Geijn's, in Thakur et al., IJHPCA 2005.
Price ScatterAllgatherPrice(const CallQuestion& question, double bytes) {
  const HostMap& hosts = question.hosts;
  Price price;
  double half = bytes / 2;
  for (int k = hosts.doublings() - 1; k >= 0; --k, half /= 2) {
    AddBranches(question, k, {1, half}, &price);
  }
  AddDoublings(question, bytes / hosts.size(), &price);
  return price;
}

}  // namespace

constinit const CollectiveAlgorithm collectives::kTreeBroadcast = {
    .name = "tree",
    .make = &MakeTree,
    .price = &TreePrice,
};
constinit const CollectiveAlgorithm collectives::kChainBroadcast = {
    .name = "chain",
    .make = &MakeChain,
    .price = &ChainPrice,
    .passes_on = true,
};
constinit const CollectiveAlgorithm collectives::kScatterAllgatherBroadcast = {
    .name = "scatter_allgather",
    .make = &MakeScatterAllgather,
    .price = &ScatterAllgatherPrice,
};

}  // namespace gradientflow
