#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/done.h"
#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/schedule.h"
#include "transports/wire.h"

namespace gradientflow {

enum class CollectiveKind : std::uint8_t {
  kAllreduce,
  kBroadcast,
  kReduce,
  kAllgather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
};
const char* Name(CollectiveKind kind);

// Calls of one channel begin in the same order on every rank. The channels do
// not wait for each other: a plain call may come before a bucket on one rank
// and after it on another, whose backward is further.
enum class Channel : std::uint8_t {
  kPlain,      // Whoever calls.
  kGradients,  // The session's own, for its steps.
};
inline constexpr int kChannels = 2;

// The buffer of an allreduce that fills while the call is under way, and whose
// result is wanted part by part: a device's memory, staged. Elements are
// counted as the call does: packed, whatever the extents.
// Called on the thread that drives; must not block nor start calls.
class Feed {
 public:
  virtual ~Feed() = default;
  // Elements [0, available()) are in `output`. Only grows, up to the call's
  // count; what is beyond is not touched.
  virtual std::size_t available() const = 0;
  // Elements [begin, begin + count) hold their result and are not touched any
  // more. Parts come in any order, each element once, all before `done` says
  // OK. After a `done` with an error nothing comes.
  virtual void Finished(std::size_t begin, std::size_t count) = 0;
};

// As the peer of a receive: whoever sends first.
inline constexpr int kAnyRank = -1;

// One call of a collective. Every rank makes the same calls in the same order
// with the same kind, count, dtypes, op, root and algorithm. (In a mixed group,
// see CallGroup::same_dtypes, an allreduce's `dtype` may differ; `wire`
// never.)
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
// Buffers do not overlap unless said. They are lent until `done` runs.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // Elements; see above.
  DType dtype = DType::kFloat32;
  DType wire = DType::kFloat32;  // Equal to dtype, or both gradient types.
  ReduceOp op = ReduceOp::kSum;
  float scale = 1.0F;  // Also multiplies the result (allreduce, floats).
  // kAllreduce of a gradient type: what a loss scale multiplied is divided by
  // it again, last of all: the result is rounded to `wire` as it is, and
  // multiplied by `unscale` in float32 as it becomes the output. Where the
  // output has 16 bits, or `keep_scaled` says that it is converted further, it
  // stays as it is; whoever takes it into float32 unscales it. (Before the
  // rounding, small gradients would be lost below a 16-bit wire's range.)
  float unscale = 1.0F;
  bool keep_scaled = false;  // Of this rank; others may differ.
  int root = 0;
  // kAllToAll: both. kGather, and a kAllgather of parts that differ:
  // recv_counts, on every rank, one per rank; kScatter: send_counts likewise.
  std::vector<std::size_t> send_counts;
  std::vector<std::size_t> recv_counts;
  // kAllreduce only: the elements of `output` that take part, ascending and
  // disjoint, `count` in sum. Empty: [0, count).
  std::vector<Extent> extents;
  // HashOf() the extents of a pool that the elements are of, wherever they are
  // (a view into the pool, a packed copy): the ranks compare it. 0: that of
  // `extents`.
  std::uint64_t place = 0;
  // kAllreduce of a gradient type only. Null: all is there. Lent like the
  // buffers.
  Feed* feed = nullptr;
  // kAllreduce: a row of allreduce/table.h. Null: the session's, or the one
  // with the least predicted time.
  const AllreduceAlgorithm* algorithm = nullptr;
  Channel channel = Channel::kPlain;
  GroupId group = 0;  // Whose ranks `root` and the counts are of.
  // For errors, traces and reports: "step 7 bucket 3".
  std::uint64_t step = 0;
  std::uint64_t bucket = 0;
};

// Collectives over a fixed set of ranks.
// NOT thread-safe: the thread that drives the engine calls.
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Starts `call` when those before it leave room; several may be in flight.
  // `done`'s flags carry kFlagNonfinite if the result holds an inf or NaN (on
  // every rank alike; allreduce of floats).
  virtual void Start(const CollectiveCall& call, Done done) = 0;

  // Makes progress without blocking. Returns whether anything moved.
  virtual bool Poll() = 0;

  // Calls started and not done.
  virtual std::size_t in_flight() const = 0;

  // Calls of that channel are under way.
  virtual bool Busy(Channel channel) const = 0;

  // Bytes this rank has moved between ranks so far for calls of that channel,
  // headers apart: messages sent, in the wire's type; in shared memory what it
  // has read from and written to others' buffers, in the type it has there,
  // whatever the wire's.
  virtual std::uint64_t bytes_sent(Channel channel) const = 0;

  // For reports: the oldest call in flight, "allreduce #7 of 5 float32, step 3
  // bucket 1"; empty if there is none.
  virtual std::string OldestCall() const = 0;

  // Why it takes no calls any more, where that is known here and not by the
  // fabric; else OK.
  virtual Status failure() const { return Status(); }
};

}  // namespace gradientflow
