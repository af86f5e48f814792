#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/fork.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/collective.h"
#include "gradientflow/config/options.h"
#include "gradientflow/optimizer/optimizer_config.h"
#include "gradientflow/session/exchange.h"

namespace gradientflow {

struct TensorSpec {
  std::string name;  // For reports; unique within the job.
  std::size_t elements = 0;
  bool always_dense = false;  // CSC always sends the chunks it touches.
  bool skip_lars = false;     // LARS factor 1: biases, batch norms.
};

// What one step did, on this rank.
struct StepStats {
  std::uint64_t step = 0;  // Counted from 0.
  std::uint64_t buckets = 0;
  // For the gradients, to other ranks, headers apart; in shared memory, read
  // from and written to others' buffers, in the pool's type: nothing has the
  // wire's there. Other collectives that ran meanwhile do not count, here and
  // in the times. Over all ranks both come to 2 (p - 1) times the pool, for a
  // dense step by ring, two-sync or shared.
  std::uint64_t bytes_sent = 0;
  std::uint64_t selected_chunks = 0;  // Of `chunks`; all when dense.
  std::uint64_t chunks = 0;
  double backward_seconds = 0;  // First to last GradientReady of the step.
  double exposed_seconds = 0;   // FinishStep's wait for communication.
  double hidden_seconds = 0;    // Communication during backward.
  // A rank's gradients held an inf or NaN: true on every rank in the same
  // step. The optimiser step skips; residuals keep what is finite.
  bool nonfinite = false;
  std::uint64_t bucket_bytes = 0;  // theta in force.
  // Exchanged gradients are so many times the true ones: the loss scale where
  // the pool has 16 bits, whose smallest numbers they would else be lost among;
  // 1 in a pool of float32. Divide by it in float32. OptimizerStep() does.
  float gradient_scale = 1.0F;
};

// One rank's part in a training job: owns the gradient pool, the progress
// thread and the links to the other ranks.
//
//   auto session = Session::Open(options, tensors).value();
//   for each step:
//     for each tensor, as backward makes it:
//       write the gradient into session->gradient(i), then
//       session->GradientReady(i);
//     session->FinishStep();  // Every gradient is now the group's.
//
// Thread-safe unless a method says otherwise.
//
// Of the process that opened it: a fork() of that leaves the job, and the
// session, as they are. There the session refuses every call, gradient() and
// pool() are the fork's own copy, and destroying it does nothing.
class Session {
 public:
  // Joins the job. `tensors` in forward order: backward makes them last to
  // first, and the pool is laid out in that, the generation order. May be
  // empty (collectives only). Blocks until every rank has joined with the same
  // tensors and settings; a difference is kInvalidArgument on every rank and
  // names the rank and the first difference; kDeadlineExceeded names who did
  // not come.
  // `exchange`, if not empty, takes the place of options.rendezvous.
  static Result<std::unique_ptr<Session>> Open(
      const Options& options, const std::vector<TensorSpec>& tensors,
      const Exchange& exchange = {});

  virtual ~Session() = default;  // Leaves the job. Blocks shortly.

  // This process is a fork of the one that opened the session. Costs a load.
  bool forked() const { return process_.forked(); }
  // OK, or kFailedPrecondition in a fork.
  Status CheckProcess() const;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const Options& options() const = 0;  // As in force.
  virtual std::size_t tensors() const = 0;

  // Where tensor `i`'s gradient lives, in pool_dtype; valid as long as the
  // session. The pool is all of them, without gaps. In the memory of
  // pool().device, as options().device says.
  virtual BufferView gradient(std::size_t i) const = 0;
  virtual BufferView pool() const = 0;
  virtual std::size_t pool_offset(std::size_t i) const = 0;  // Elements.

  // With a pool on a GPU: the stream (cudaStream_t) that gradients are computed
  // on, the legacy default stream until this is called. GradientReady(i) then
  // means that the work that writes gradient(i) has been submitted to it;
  // communication waits for that on the device, and the stream never waits for
  // communication. Between steps, else kFailedPrecondition; one thread with
  // FinishStep(). The stream is the caller's, and outlives the session. Without
  // effect with a pool on the CPU.
  virtual Status SetStream(void* native) = 0;

  // Lends gradient(i) to the session until FinishStep() returns. Once per
  // tensor and step, in any order, from any thread; the first one begins the
  // step. Wait-free but for the tensor that completes a bucket, which may wake
  // the progress thread. A mistake here (bad index, twice) ends the job, as
  // FinishStep() says: nothing that becomes ready after it is sent.
  virtual void GradientReady(std::size_t i) = 0;
  // The tensor took no part in this step on this rank: counts as zeros, which
  // are written to it. In place of GradientReady(i), not besides it.
  virtual void GradientAbsent(std::size_t i) = 0;

  // Blocks until the step's gradients are aggregated: mean (or sum) over the
  // ranks, divided by the loss scale in a pool of float32, still times it in
  // one of 16 bits (StepStats::gradient_scale). kFailedPrecondition, and the
  // step goes on, if a tensor is neither ready nor absent; hooks that are still
  // inside GradientReady() are waited for. After any other error every gradient
  // is unspecified and the session takes no more steps: what needs them fails
  // with the reason of the first failure. One thread at a time; not in a
  // completion.
  virtual Result<StepStats> FinishStep() = 0;

  // Takes effect with the next step to begin; the same on all ranks.
  // kInvalidArgument, and nothing changes, if it or its inverse is not a
  // positive number. One thread with FinishStep().
  virtual Status SetLossScale(float scale) = 0;

  // Updates the float32 weights from the step just finished; weights[i] is
  // tensor i's, `elements` long, the caller's, where the pool is: with a GPU
  // the update is submitted to the stream, and nobody waits. Only what was sent
  // changes.
  // Skips a nonfinite step. Momentum lives in the session. Once for a step, and
  // before the next one begins: else kFailedPrecondition. With
  // residual=momentum, every group's momentum is that of the options, else
  // kInvalidArgument; after that, or kResourceExhausted, nothing has changed;
  // after other errors the job ends. One thread with FinishStep().
  virtual Status OptimizerStep(const std::vector<OptimizerGroup>& groups) = 0;
  // The same with all tensors in one group.
  Status OptimizerStep(const OptimizerConfig& config,
                       const std::vector<float*>& weights) {
    return OptimizerStep({{config, weights}});
  }

  // Chunks whose gradients the last finished step exchanged, one byte each (0
  // or 1); empty when dense. One thread with FinishStep().
  virtual std::vector<std::uint8_t> selection() const = 0;

  // Residual, momentum, selection, loss scale and step number, of this rank.
  // Between steps only, else kFailedPrecondition.
  virtual Result<std::vector<std::byte>> SaveState() const = 0;
  // How long SaveState() is; fetches and copies nothing.
  virtual Result<std::size_t> StateBytes() const = 0;
  // A collective: all ranks call, each with its own rank's state of one run and
  // one step. Either all go on from there or nobody's session changes, and
  // every rank hears whose state is refused, and why: damaged or no bytes
  // (kDataLoss), another rank's, of other tensors or settings but for how
  // gradients travel (segments, buckets, connections, algorithm), of another
  // run or step than rank 0's (kInvalidArgument), within a step
  // (kFailedPrecondition). A gradient that is marked meanwhile ends the job.
  // One thread with FinishStep().
  virtual Status RestoreState(std::span<const std::byte> state) = 0;

  // Collectives on plain buffers, of the host or of the pool's device, in the
  // same order on every rank; they may run while a step does. Of the device:
  // what the stream has been given so far comes before, and Wait() returns when
  // the result is complete. Start() returns a ticket at once; Wait() blocks and
  // ends it. Run() is both.
  virtual Result<std::uint64_t> Start(const CollectiveCall& call) = 0;
  virtual Status Wait(std::uint64_t ticket) = 0;
  virtual Status Run(const CollectiveCall& call) = 0;

  // Some of the ranks, with collectives of their own (CollectiveCall::group) on
  // the same links and thread: rank i of the group is ranks[i]. All members
  // open it alike, with an `id` (not 0) of no other group that one of them has
  // open. Local: nothing is sent. Host memory only.
  virtual Status OpenGroup(GroupId id, const std::vector<int>& ranks) = 0;
  // Its calls still in flight end the job; kInvalidArgument if it is not open.
  virtual Status CloseGroup(GroupId id) = 0;

  // Told once how a call ended: by the thread that drives, whichever it is,
  // with no lock of the session's held. May start calls; must not wait for any.
  using Completion = std::function<void(const Status&)>;
  // As Start(), with `completion` in place of Wait(). An error returned here is
  // the caller's, and `completion` does not run.
  virtual Result<std::uint64_t> StartThen(const CollectiveCall& call,
                                          Completion completion) = 0;
  // One message to or from rank `peer` of `group`; matched by (group, peer,
  // tag) in order. The bytes are lent until `completion`.
  struct Message {
    GroupId group = 0;
    int peer = 0;  // StartRecv: kAnyRank takes the first that comes.
    std::uint32_t tag = 0;
    int* source = nullptr;  // StartRecv: set before `completion`; may be null.
  };
  virtual Result<std::uint64_t> StartSend(const Message& message,
                                          const void* data, std::size_t bytes,
                                          Completion completion) = 0;
  virtual Result<std::uint64_t> StartRecv(const Message& message, void* data,
                                          std::size_t bytes,
                                          Completion completion) = 0;
  // Drives until the completion of that ticket has returned or, of Start(), the
  // call has ended (Wait() then says how), `seconds` at most (to 0.1 s;
  // negative: without limit). At once, and OK, for one that was over before.
  // kDeadlineExceeded: still under way. kInvalidArgument: was never given out.
  virtual Status Await(std::uint64_t ticket, double seconds) = 0;

  // OK, or why the job has ended.
  virtual Status Check() const = 0;

  // Point to point: matched by (peer, tag) in order. Block until the buffer is
  // free (Send) or filled (Recv). A length that differs from the sent one is
  // kInvalidArgument on the receiver, and ends nothing else.
  virtual Status Send(int peer, std::uint32_t tag, const void* data,
                      std::size_t bytes) = 0;
  virtual Status Recv(int peer, std::uint32_t tag, void* data,
                      std::size_t bytes) = 0;

  // `bytes` that shared-memory collectives read without a copy; zeroed, until
  // FreeShared() or the session ends. Ordinary memory where no peer shares.
  virtual Result<BufferView> AllocateShared(std::size_t bytes) = 0;
  virtual void FreeShared(BufferView view) = 0;

  // Ends the job on every rank with `why`.
  virtual void Abort(const Status& why) = 0;

 private:
  const ProcessMark process_;
};

}  // namespace gradientflow
