#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

// A collective is a value: a list of what one rank does, with no pointers and
// no transport. A single executor runs any schedule over any fabric, tests run
// schedules without a network, and the cost model prices them.
namespace gradientflow {

// The most ranks whose contributions one kReduceMany or kPullReduce sums. A
// kReduceMany over more ranks is split into batches.
inline constexpr int kMaxReduceParties = 64;

// Elements [begin, begin + count) of a buffer.
struct Extent {
  std::size_t begin = 0;
  std::size_t count = 0;
};

// Elements of one of a call's buffers.
struct Slice {
  enum class Space : std::uint8_t {
    kData,     // The call's buffer: in place, or the output. Pool dtype.
    kInput,    // The call's separate, read-only input, if any.
    kScratch,  // Where contributions are received. Wire dtype. Calls that do
               // not convert may also send, copy and reduce there.
  } space = Space::kData;
  std::size_t offset = 0;  // In elements.
  std::size_t count = 0;   // In elements; with 0 both sides skip the action.
};

struct Action {
  enum class Kind : std::uint8_t {
    kSend,        // src -> peer, converted to the wire dtype
    kRecv,        // peer -> dst (kScratch, or kData: converted back)
    kReduce,      // dst op= src (kScratch)
    kReduceMany,  // dst (kData) = own op all of src, in rank order; see below
    kCopy,        // dst = src, locally
    // One-sided, for ranks that share memory. What a rank may read of another
    // is what that one shows: see Schedule::shown.
    kSync,        // waits until every sharing rank has come this far
    kPull,        // dst (kData) = src of `peer`, copied
    kPullReduce,  // dst (kData) = op over the sharing ranks' src, in rank
                  // order; src may be empty if it is the same slice as dst
    kPush,        // writes my dst (kData) to the sharing ranks' dst
  };
  Kind kind = Kind::kSend;
  bool is_message() const { return kind == Kind::kSend || kind == Kind::kRecv; }
  int peer = -1;  // For kSend, kRecv and kPull.
  Slice src;
  Slice dst;
  // For kSend, where messages are placed (Schedule::placing): the peer's slice
  // of kScratch or kData in which the message lands, which is the `dst` of the
  // kRecv that it matches. In kScratch it is one of landings that all have the
  // same length and lie one behind another from offset 0 on.
  Slice there;

  // For kReduceMany: src is the first of `sources` landings of src.count
  // elements each. They lie one behind another and come from the other ranks in
  // ascending order. `own` (in kData or kInput) is at place `own_place` among
  // them.
  int sources = 0;
  int own_place = 0;
  Slice own;
  // `own` is a partial sum that the action before has made.
  bool partial = false;

  // Where a mean is scaled by 1/size. Each contribution is scaled exactly once:
  // before the sum (see Schedule::multi_hop) by the actions with `raw`,
  // otherwise after the sum by the actions with `final`. `raw` means:
  //   kSend        what is sent is this rank's own contribution, and no rank
  //                downstream scales it: send it scaled
  //   kReduce      dst holds this rank's own contribution: scale dst, but not
  //                src, before adding
  //   kReduceMany, all operands are unscaled: scale the sum. (The sends to a
  //   kPullReduce  raw kReduceMany are not raw.)
  // `final` means that after a kReduce, kReduceMany or kPullReduce dst holds
  // the finished result: scale it if the contributions were not scaled. No
  // action has both `raw` and `settle`.
  bool raw = false;
  bool final = false;
  // For kSend: the sender replaces its own data by what the receiver gets,
  // rounded to the wire dtype, so that all ranks end with the same bits.
  bool settle = false;
  // This action leaves the result in its slice of kData, and later actions send
  // that slice only with `relay`. So this is where the result is unscaled (see
  // CollectiveCall::unscale). Set on a kSend that settles, a kReduceMany or a
  // kPullReduce; in an allreduce every kRecv into kData acts as if it were set.
  bool last = false;
  // For kSend: src is a result that was received or settled before, and is sent
  // on with exactly the same bits.
  bool relay = false;
  // For kPullReduce: also writes the result to the sharing ranks, as a kPush in
  // the same pass.
  bool push = false;
};

// The bytes on the wire that fit into a mailbox: see Schedule::mailed.
inline constexpr std::size_t kMailBytes = std::size_t{8} << 10;

// The messages of one round run concurrently, and its local actions run after
// them, in order. Round k + 1 starts when round k is done on this rank.
struct Schedule {
  std::vector<std::vector<Action>> rounds;
  std::size_t scratch_elements = 0;
  // The part of kData that no sharing rank reads or writes on this rank. If
  // peers cannot reach the buffer and work in a copy of it, this part needs no
  // copy.
  Slice untouched;
  // What the sharing ranks read of this rank, from the first kSync on; an empty
  // slice is nothing. It begins at offset 0 of kInput or kData. Without a value
  // they read all of kData and write there, too.
  std::optional<Slice> shown;
  // True if they read a copy of `shown` that stays as it is for some calls, so
  // that no rank waits for its peers to have read it. There is one kSync, and
  // `shown` has at most kMailBytes. All sharing ranks mail, or none does.
  bool mailed = false;
  // How many ranks, this one included, write the schedule's messages where they
  // belong on each other (Action::there); 0: nobody does. All messages are then
  // of that kind, their elements of kData are from `placed_from` on, and
  // scratch is a landing for each of the others.
  int placing = 0;
  std::size_t placed_from = 0;
  // True if partial sums travel (ring, halving-doubling, two-level). With a
  // 16-bit wire or pool, a mean is then scaled before the sum instead of after
  // it, so that no partial sum overflows.
  bool multi_hop = false;
};

// Block b of `count` elements that are cut into `size` blocks, as even as
// possible.
Extent BlockOf(std::size_t count, int size, int b);

// Which ranks share a host: host[r] is any number that only the ranks of one
// host have in common. Empty if every rank is alone.
struct Topology {
  std::vector<int> host;

  bool IsOneHost() const {
    return !host.empty() && std::all_of(host.begin(), host.end(), [&](int h) {
      return h == host.front();
    });
  }
};

}  // namespace gradientflow
