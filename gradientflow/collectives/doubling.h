#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/algorithm.h"
#include "gradientflow/collectives/schedule.h"

// Patterns that several collectives are made of: most have ceil(log2 size)
// rounds. Blocks lie one behind another: block b begins at begins[b], and
// begins[size] is the end of the last one. A range of blocks may go past the
// last one and around to the first.
namespace gradientflow {

using Begins = std::vector<std::size_t>;

// Where `size` blocks of `count` elements begin; where parts begin.
Begins BeginsOf(int size, std::size_t count);
Begins BeginsOf(const std::vector<std::size_t>& parts);

// The slices of `space` with the blocks [first, first + count), counted around:
// at most two, none of them empty.
std::vector<Slice> Around(Slice::Space space, const Begins& begins, int first,
                          int count);

// Round k of the pattern in which every rank has 2^k blocks, its own first, and
// gets as many more from one peer.
struct Doubling {
  int to = 0;
  int from = 0;
  int sent_first = 0;      // The first block that this rank sends.
  int received_first = 0;  // The first block that it receives.
  int blocks = 0;          // How many go each way.
};
// If `size` is a power of two, ranks whose numbers differ in one bit swap what
// they have (recursive doubling; Thakur et al., IJHPCA 2005). Otherwise ranks
// send down and receive from above at distances 1, 2, 4, ... (Bruck et al.,
// IEEE TPDS 1997).
std::vector<Doubling> Doublings(int rank, int size);

// An allgather of blocks of kData. Rank r of the pattern is `root` + r, counted
// around, and begins with block r of `begins`. If `rooted`, the root has all
// blocks from the start, so nothing is sent to it.
void AppendDoublings(int rank, int size, int root, bool rooted,
                     const Begins& begins, Schedule* schedule);
void AddDoublings(const CallQuestion& question, double block_bytes,
                  Price* price);

// Adds the round in which `traffic` goes along the branches of length 2^k of a
// binomial tree, some of which lead to other hosts. Those inside a host use no
// line.
void AddBranches(const CallQuestion& question, int k, const Traffic& traffic,
                 Price* price);

// The price of a call in which `traffic` goes from rank to rank along the ring
// of hosts, once around but for one hop. The first segment has the ranks to
// itself. From then on a message comes and one goes per segment, on as many
// ranks as there are segments under way: few at the beginning and at the end,
// and never more than the window lets begin. What waiting ranks take is counted
// as for the first segment, which is too much for those that follow.
Price PriceOfChain(const CallQuestion& question, const Traffic& traffic);

// A binomial tree over places; the place of a rank is its distance from the
// root, counted upwards and around. A place's subtree is a range of places that
// begins with itself. The child with the largest subtree comes first.
struct TreeNode {
  int place = 0;
  int parent = -1;  // A rank; -1 for the root.
  int subtree = 1;  // Number of places, this one included.
  struct Child {
    int rank = 0;
    int place = 0;
    int subtree = 1;
  };
  std::vector<Child> children;
};
TreeNode TreeNodeOf(int rank, int size, int root);

}  // namespace gradientflow
