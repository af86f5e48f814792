#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

// A collective is a value: what one rank does, with no pointers and no
// transport. One executor runs any schedule over any fabric; tests run them
// with no network; the planner prices them.
namespace gradientflow {

// The most ranks whose contributions one kReduceMany or kPullReduce sums. More
// are summed in batches, own first.
inline constexpr int kMaxReduceParties = 64;

// Elements [begin, begin + count) of some buffer.
struct Extent {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// Elements of one of a call's buffers.
struct Slice {
  enum class Space : std::uint8_t {
    kData,     // The call's buffer: in place, or the output. Pool dtype.
    kInput,    // The call's separate, read-only input, if it has one.
    kScratch,  // Landing zone of received contributions. Wire dtype.
  } space = Space::kData;
  std::size_t offset = 0;  // Elements.
  std::size_t count = 0;   // Elements; 0: the step is skipped, on both sides.
};

struct Step {
  enum class Kind : std::uint8_t {
    kSend,        // src (kData or kInput) -> peer, converted to the wire dtype
    kRecv,        // peer -> dst (kScratch, or kData: converted back)
    kReduce,      // dst (kData) op= src (kScratch)
    kReduceMany,  // dst (kData) = own op all of src, in rank order; see below
    kCopy,        // dst (kData) = src (kInput or kData), locally
    // One-sided, for ranks that share memory; `dst` in kData, the same slice
    // of the same-sized buffer on every sharing rank:
    kSync,        // waits until every sharing rank has come this far
    kPullReduce,  // dst = op over the sharing ranks' dst, in rank order
    kPush,        // writes my dst to the sharing ranks' dst
  };
  Kind kind = Kind::kSend;
  int peer = -1;  // kSend, kRecv.
  Slice src;
  Slice dst;

  // kReduceMany: src is the first of `sources` landings, each of src.count
  // elements, one behind the other, from the other ranks in ascending order;
  // `own` (kData or kInput) comes at place `own_place` among them.
  int sources = 0;
  int own_place = 0;
  Slice own;
  bool partial = false;  // `own` is a sum already, made by the step before.

  // Scaling of a mean by 1/size, once per contribution. Before the sum (see
  // Schedule::multi_hop) it happens where `raw` is set, otherwise where `final`
  // is:
  //   kSend        raw: what is sent is this rank's own contribution, and
  //                nobody downstream scales it: send it scaled
  //   kReduce      raw: dst holds this rank's own contribution: scale dst,
  //                not src, before adding
  //   kReduceMany, raw: all that is summed is unscaled: scale the sum. (The
  //   kPullReduce  sends to a raw kReduceMany are not raw.)
  //   final: after a kReduce, kReduceMany or kPullReduce dst holds the finished
  //   result: scale it if the contributions were not.
  // raw and settle are never on one step.
  bool raw = false;
  bool final = false;
  // kSend: the sender keeps what the receiver gets (rounded to the wire
  // dtype), so that all ranks end with the same bits.
  bool settle = false;
  // What this step leaves in its slice of kData is the result, of which nothing
  // is sent any more but as `relay`: it is unscaled here (see
  // CollectiveCall::unscale). A kSend that settles, a kReduceMany or a
  // kPullReduce; every kRecv into kData of an allreduce does so unasked.
  bool last = false;
  // kSend: src is a result, received or settled before: it goes on as it came.
  bool relay = false;
  // kPullReduce: also writes the result to the sharing ranks (kPush, fused).
  bool push = false;
};

// Messages of one round run concurrently; its local steps run after them, in
// order. Round k + 1 starts when round k is done on this rank.
struct Schedule {
  std::vector<std::vector<Step>> rounds;
  std::size_t scratch_elements = 0;
  // What no sharing rank reads or writes here, in kData: where peers work in a
  // copy of the buffer, because they cannot reach it, this part needs none.
  Slice untouched;
  // Whether partial sums travel (ring, halving-doubling, two-level): then with
  // a 16-bit wire (or pool) a mean is scaled before the sum, not after it, so
  // that no partial sum overflows.
  bool multi_hop = false;
};

// Block b of `count` elements cut into `size` blocks, as even as they come.
Extent BlockOf(std::size_t count, int size, int b);

// Who shares a host with whom: host[r] is any number that the ranks of one
// host have in common. Empty: every rank alone.
struct Topology {
  std::vector<int> host;

  bool IsOneHost() const {
    return !host.empty() && std::all_of(host.begin(), host.end(), [&](int h) {
      return h == host.front();
    });
  }
};

// Each function below gives rank `rank` of [0, size)'s part. The k-th message
// from a rank to a peer matches the peer's k-th receive from it. Formulas and
// sources: gradientflow/docs/algorithms.md. REQUIRES 0 <= rank < size.
// The allreduces are in allreduce/table.h.

// `root`'s kData to every rank's. Binomial tree; a chain (for long buffers,
// which the executor cuts into segments that follow each other down it).
Schedule TreeBroadcast(int rank, int size, int root, std::size_t count);
Schedule ChainBroadcast(int rank, int size, int root, std::size_t count);

// kInput of `count` on every rank, reduced into `root`'s kData, in rank order.
// Non-roots have no kData.
Schedule DirectReduce(int rank, int size, int root, std::size_t count);

// kInput of `count` elements; kData of size * count on every rank. The own
// block, too, is rounded to the wire dtype.
Schedule RingAllgather(int rank, int size, std::size_t count);
Schedule DirectAllgather(int rank, int size, std::size_t count);
// counts[r] elements of rank r, from kInput to their place in kData.
Schedule DirectAllgatherOfParts(int rank,
                                const std::vector<std::size_t>& counts);

// kInput of size * count elements; block `rank`, reduced in rank order, into
// kData of `count`.
Schedule DirectReduceScatter(int rank, int size, std::size_t count);

// kInput holds what goes to rank 0, 1, ... one behind the other, send_counts
// elements each; kData likewise what comes. Staggered pairwise exchange, with
// a few peers at a time. REQUIRES send_counts[rank] == recv_counts[rank].
Schedule PairwiseAllToAll(int rank, const std::vector<std::size_t>& send_counts,
                          const std::vector<std::size_t>& recv_counts);

// counts[r]: rank r's kInput elements; the root's kData holds them one behind
// the other. Scatter is the reverse.
Schedule DirectGather(int rank, int root,
                      const std::vector<std::size_t>& counts);
Schedule DirectScatter(int rank, int root,
                       const std::vector<std::size_t>& counts);

// Dissemination, ceil(log2 size) rounds of one-element messages. kData has one
// element, whose value does not matter (int8).
Schedule DisseminationBarrier(int rank, int size);

}  // namespace gradientflow
