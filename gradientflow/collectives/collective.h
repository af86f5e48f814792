#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/done.h"
#include "gradientflow/base/dtype.h"
#include "gradientflow/base/pollable.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/workers.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/schedule.h"
#include "transports/wire.h"

namespace gradientflow {

class Stream;

// Calls of one channel begin in the same order on every rank. The channels are
// independent: relative to the gradients' buckets, a plain call may come
// earlier on one rank than on another whose backward pass is further along.
enum class Channel : std::uint8_t {
  kPlain,      // Calls of the application.
  kGradients,  // The session's own calls, for its steps.
};
inline constexpr int kChannels = 2;

// The buffer of an allreduce that is filled while the call is under way, and
// whose result is wanted part by part: an example is a device's memory, staged
// in host memory. Element numbers are those of the call: packed, whatever the
// extents. All functions run on the thread that drives the collective. They
// must neither block nor start calls.
class Feed {
 public:
  virtual ~Feed() = default;
  // Elements [0, available()) are in `output`. The number only grows, up to the
  // call's count. The collective does not touch elements beyond it.
  virtual std::size_t available() const = 0;
  // Elements [begin, begin + count) hold their result, and the collective does
  // not touch them again. Parts are reported in any order, each element once,
  // all of them before `done` reports OK. Nothing is reported after `done` has
  // reported an error.
  virtual void Finished(std::size_t begin, std::size_t count) = 0;
};

// As the peer of a receive: any rank; the first message that arrives matches.
inline constexpr int kAnyRank = -1;

// What has to run before a call's first work, which `stream` is given next;
// nothing if empty.
struct BeforeCall {
  Status (*run)(void* self, std::uint64_t cookie, Stream& stream) = nullptr;
  void* self = nullptr;
  std::uint64_t cookie = 0;

  Status operator()(Stream& stream) const {
    return run == nullptr ? Status() : run(self, cookie, stream);
  }
};

// One call of a collective. Every rank makes the same calls in the same order
// with the same kind, count, dtypes, op, root and algorithm. (In a mixed group,
// see CallGroup::same_dtypes, the `dtype` of an allreduce may differ between
// ranks; `wire` never may.) Elements of the buffers:
//
//                 input               output
// kAllreduce      -                   count, in place
// kBroadcast      -                   count, in place
// kReduce         count               count on the root, may equal input
// kAllgather      count               count * size
//  with counts    recv_counts[rank]   sum(recv_counts)
// kReduceScatter  count * size        count
// kAllToAll       sum(send_counts)    sum(recv_counts)
// kGather         recv_counts[rank]   sum(recv_counts) on the root
// kScatter        send_counts sum     send_counts[rank]   (input on the root)
// kBarrier        -                   -
//
// Buffers must not overlap unless the table allows it. They are lent to the
// collective until `done` runs.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // Elements; see above.
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat32;  // Equal to dtype, or both are gradient types.
  ReduceOp op = ReduceOp::kSum;
  float scale = 1.0F;  // An allreduce of floats is also multiplied by this.
  // Undoes a loss scale in an allreduce of a gradient type. The result is
  // rounded to `wire` while it is still scaled, and then multiplied by
  // `unscale` in float32 as it is written to the output. Unscaling before the
  // rounding would lose small gradients below the range of a 16-bit wire. An
  // output of 16 bits, or one with `keep_scaled`, stays scaled; the code that
  // converts it to float32 unscales it.
  float unscale = 1.0F;
  bool keep_scaled = false;  // Set per rank; ranks may differ.
  int root = 0;
  // Elements for or from each rank. kAllToAll uses both vectors, and they
  // differ between ranks. kGather, and kAllgather of unequal parts, use
  // recv_counts; kScatter uses send_counts; for these the vector is the same on
  // every rank.
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> recv_counts;
  // For kAllToAll: every rank sends the same number of elements to every rank.
  // All ranks set it, or none does. Small parts then travel together.
  bool equal_counts = false;
  // The elements of `output` that take part in a kAllreduce: ascending,
  // disjoint, `count` of them in total. Empty means [0, count).
  std::vector<Extent> extents;
  // Identifies the place of the elements in a pool, as HashOf() of their
  // extents there, even if `output` is a view into the pool or a packed copy.
  // The ranks compare it. 0 stands for the hash of `extents`.
  std::uint64_t place = 0;
  // For a kAllreduce of a gradient type whose buffer fills during the call.
  // Null if all elements are there already. Lent like the buffers.
  Feed* feed = nullptr;
  // For a kAllreduce: a copy of `output`, gapless and in the wire dtype, in
  // memory that the network card reaches and the processor need not: that of a
  // device. REQUIRES that OwnParts() accepts the call. Peers are sent what is
  // here, and what they send lands here; only the elements of OwnParts() are
  // read and written in `output`. Lent like the buffers. Null if there is none.
  std::byte* direct = nullptr;
  // For a collective on a device's memory: runs once, on the thread that drives
  // and perhaps within Start(), right before the call's first work is put on
  // the stream. Makes the stream wait for the work that writes the elements of
  // this call, and not those of later calls; the call then waits for no other
  // work but that of the wire's stream. If it fails, so does the call.
  BeforeCall before;
  // For a collective that TakesAhead(), if set: the caller submits the work
  // that follows the call to the wire's stream, after Join() if the call
  // converts, without waiting for the result. `submitted` runs once, on the
  // thread that drives and perhaps within Start(), when all work of the call is
  // on the stream. Nobody asks for the call's end: `done` runs after Passed(),
  // or when the call has failed, and its flags say nothing. Instead *nonfinite,
  // in the device's memory, becomes 1 if the result of an allreduce holds an
  // infinity or NaN; it is null if the caller searches the result itself.
  Done submitted;
  std::uint32_t* nonfinite = nullptr;
  // Threads that share what a rank does without others, if it is alone in its
  // group; null: the driving thread does it. Borrowed like the buffers.
  Workers* workers = nullptr;
  // One of AlgorithmsOf(kind); see table.h. Null selects, for an allreduce, the
  // algorithm of the options. If they name none, and for other collectives, it
  // selects the algorithm with the least predicted time.
  const CollectiveAlgorithm* algorithm = nullptr;
  Channel channel = Channel::kPlain;
  GroupId group = 0;  // `root` and the counts refer to its ranks.
  // Named in errors, traces and reports: "step 7 bucket 3".
  std::uint64_t step = 0;
  std::uint64_t bucket = 0;
};

// Collectives over a fixed set of ranks. NOT thread-safe: all calls come from
// the thread that drives the engine.
class Collective : public Pollable {
 public:
  virtual ~Collective() = default;

  // Starts `call` as soon as the calls before it leave room; several may be in
  // flight. `done` runs exactly once and never inside Start(). Its flags
  // contain kFlagNonfinite if the result of an allreduce of floats holds an
  // infinity or NaN; every rank gets the same flag.
  // REQUIRES that the group is open and ValidateCall() accepts the call (see
  // call_plan.h): whoever takes calls from users checks them.
  virtual void Start(const CollectiveCall& call, Done done) = 0;

  // Returns whether an allreduce like `call` may have a `direct`, which holds
  // as long as nothing but calls happens to the collective. If so, appends to
  // `parts` the elements that this rank itself adds up, ascending.
  virtual bool OwnParts(const CollectiveCall& call,
                        std::vector<Extent>* parts) {
    static_cast<void>(call);
    static_cast<void>(parts);
    return false;
  }

  // Whether calls may have `submitted`: calls of a channel run on a stream of
  // the device, in the order of Start().
  virtual bool TakesAhead() const { return false; }
  // Makes the stream of the channel's wire wait for all work that calls have
  // submitted so far, some of which may be on streams beside the wire. Work
  // that the caller submits to it afterwards runs after that.
  virtual Status Join(Channel channel) {
    static_cast<void>(channel);
    return Status();
  }
  // Says that all work that calls of the channel have submitted so far has
  // ended: the caller has seen a later event.
  virtual void Passed(Channel channel) { static_cast<void>(channel); }

  // Number of calls that were started and have not ended.
  virtual std::size_t in_flight() const = 0;

  // Returns whether calls of that group and channel are under way. REQUIRES
  // that the group is open.
  virtual bool Busy(GroupId group, Channel channel) const = 0;

  // Bytes that this rank has moved between ranks for calls of that group and
  // channel, without headers. For messages these are the bytes sent, in the
  // wire dtype. In shared memory they are the bytes read from and written to
  // the buffers of other ranks, in the dtype of those buffers. REQUIRES that
  // the group is open.
  virtual std::uint64_t bytes_sent(GroupId group, Channel channel) const = 0;

  // Describes the oldest call in flight, for reports: "allreduce #7 of 5
  // float32, step 3 bucket 1". Empty if there is none.
  virtual std::string OldestCall() const = 0;

  // Returns why this collective takes no more calls, if the fabric does not
  // know the reason; otherwise OK.
  virtual Status failure() const { return Status(); }
};

}  // namespace gradientflow
