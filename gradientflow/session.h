#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"
#include "gradientflow/optimizer/optimizer_options.h"
#include "transports/remote_writes.h"

namespace gradientflow {

struct TensorSpec {
  std::string name;  // For reports; unique within the session.
  std::size_t elements = 0;
  bool always_dense = false;  // CSC always sends the chunks it touches.
  bool skip_lars = false;     // LARS factor 1: biases, batch norms.
};

// What one step did, on this rank.
struct StepStats {
  std::uint64_t step = 0;  // Counted from 0.
  std::uint64_t buckets = 0;
  // Bytes of gradients that this rank sent to other ranks, without headers, in
  // the wire dtype. In shared memory: bytes that it read from and wrote to the
  // buffers of other ranks, in the pool's dtype. Other collectives that ran
  // meanwhile do not count, neither here nor in the times below. In total over
  // all ranks, a dense step by ring, two-sync or shared memory moves 2 (p - 1)
  // times the pool.
  std::uint64_t bytes_sent = 0;
  std::uint64_t selected_chunks = 0;  // Out of `chunks`; all when dense.
  std::uint64_t chunks = 0;
  // On a device these are differences of its events, and say what the device
  // has waited for, not the host.
  double backward_seconds = 0;  // From the first to the last gradient.
  double exposed_seconds = 0;   // From there to the end of communication.
  double hidden_seconds = 0;    // Communication during backward.
  // The gradients of some rank held an infinity or NaN. True on every rank in
  // the same step. The optimiser skips such a step; residuals keep what is
  // finite.
  bool nonfinite = false;
  std::uint64_t bucket_bytes = 0;  // The bucket size (theta) in force.
  // The exchanged gradients are the true ones times this factor. It is 1 in a
  // float32 pool. In a 16-bit pool it is the loss scale, because the range of
  // 16 bits would lose small gradients without it. Divide by it in float32;
  // OptimizerStep() does so.
  float gradient_scale = 1.0F;
  // What this rank's RDMA links have written since the step before, for
  // whatever purpose: all sessions and collectives of the communicator share
  // the links. Unset without such links.
  std::optional<RemoteWrites> rdma;
};

// How FinishStepAsync() has ended a step.
struct AsyncStep {
  std::uint64_t step = 0;  // The step that was ended.
  // A cudaEvent_t: the gradients are there when it is reached. Null if they are
  // there already. The session's, until its next step ends.
  void* event = nullptr;
  // What is known of the latest step whose result is there, if no earlier call
  // has returned it: this step if `event` is null, otherwise at best the step
  // before.
  std::optional<StepStats> known;
};

// The gradients of one model on one rank, and the training steps that exchange
// them. A session lives on a communicator. Several sessions (several models)
// may share a communicator: they share its links and its thread, and their
// steps do not wait for each other.
//
//   auto comm = Communicator::Open(options).value();
//   auto session = GradientSession::Open(comm, tensors, options).value();
//   for each step:
//     for each tensor, as backward makes it:
//       write the gradient into session->gradient(i), then
//       session->GradientReady(i);
//     session->FinishStep();  // Every gradient is now the ranks' mean.
//
// Thread-safe unless a method says otherwise.
//
// A session belongs to the process that opened it. In a fork of that process
// every call is refused, gradient() and pool() are the fork's own copy, and
// destroying the session does nothing.
class GradientSession {
 public:
  // Opens a session of the ranks of `group` of `comm`: 0 for all of its ranks,
  // else a group of Communicator::OpenGroup(), which must stay open as long.
  // This is a collective: all of those ranks make the same call, at the same
  // place among their plain calls. A rank opens one session at a time.
  //
  // `tensors` are in forward order and may be empty. Backward makes gradients
  // from the last tensor to the first, and the pool is laid out in that
  // generation order. Of `options`, the settings of the sections "Gradients"
  // and "Coarse-grained sparse communication" count here. Neither they nor the
  // tensors may differ between ranks. If they do, every rank gets
  // kInvalidArgument, which names the rank and the first difference. If a rank
  // cannot open the session, the others get its error, which names that rank.
  //
  // Shared-memory collectives and GPU pools serve one session at a time. The
  // gradients of further sessions that are open at the same time travel as
  // messages; with a GPU pool, opening such a session returns kUnimplemented.
  static Result<std::unique_ptr<GradientSession>> Open(
      std::shared_ptr<Communicator> comm,
      const std::vector<TensorSpec>& tensors, const Options& options,
      GroupId group = 0);

  // Opens a session of all ranks on a communicator of its own; see
  // Communicator::Open().
  static Result<std::unique_ptr<GradientSession>> Open(
      const Options& options, const std::vector<TensorSpec>& tensors,
      const Exchange& exchange = {});

  // Closes the session. If all ranks do so in the middle of the same step,
  // within 5 seconds, what is in flight ends and the job goes on. Otherwise the
  // job ends if collectives of the session are in flight, if this rank closes
  // in the middle of a step and another one does not close in time, or if
  // another rank goes on to a step that this rank has taken no part in.
  ~GradientSession();
  GradientSession(const GradientSession&) = delete;
  GradientSession& operator=(const GradientSession&) = delete;

  Communicator& communicator() const;
  int rank() const;  // In the session's group, like size().
  int size() const;
  const Options& options() const;  // As in force.
  std::size_t tensors() const;

  // Where the gradient of tensor `i` lives, in pool_dtype; valid as long as the
  // session. pool() holds all gradients without gaps. Both are in the memory of
  // pool().device, which is the communicator's.
  BufferView gradient(std::size_t i) const;
  BufferView pool() const;
  std::size_t pool_offset(std::size_t i) const;  // In elements.

  // For a pool on a GPU: sets the stream (a cudaStream_t) that gradients are
  // computed on. Until this is called, it is the legacy default stream.
  // GradientReady(i) then means that the work that writes gradient(i) has been
  // submitted to that stream. Communication waits for it on the device, and the
  // stream never waits for communication. Has no effect for a pool on the CPU.
  //
  // May be called between steps only, else kFailedPrecondition, and not
  // concurrently with FinishStep(). The caller owns the stream, which outlives
  // the session.
  Status SetStream(void* native);

  // Lends gradient(i) to the session until FinishStep() returns. To be called
  // once per tensor and step, in any order, from any thread; the first call
  // begins the step. Wait-free, except for the tensor that completes a section
  // of the pool, which may wake the progress thread. A mistake here (a bad
  // index, a second call) ends the job, as FinishStep() will say, and nothing
  // that becomes ready later is sent.
  void GradientReady(std::size_t i);
  // Says that the tensor took no part in this step on this rank. It counts as
  // zeros, which are written to it. To be called instead of GradientReady(i),
  // not in addition to it.
  void GradientAbsent(std::size_t i);

  // Blocks until the gradients of the step are aggregated: each is the mean (or
  // sum) over the ranks. In a float32 pool it is divided by the loss scale; in
  // a 16-bit pool it still contains the loss scale (StepStats::gradient_scale).
  // Waits until the hooks have written all that the next step starts from;
  // before the session is closed, their calls must also have returned.
  //
  // Returns kFailedPrecondition if a tensor is neither ready nor absent; the
  // step then goes on. After any other error all gradients are unspecified and
  // the session takes no more steps: calls that need them return the reason of
  // the first failure. One thread at a time; not from a completion.
  Result<StepStats> FinishStep();

  // The same without waiting for a GPU: returns once all work of the step has
  // been submitted, and the stream of SetStream() waits for it on the device.
  // Whatever the caller submits to that stream from then on finds the step's
  // gradients; OptimizerStep() may follow at once, and skips a nonfinite step
  // on the device. Other streams have to wait for AsyncStep::event.
  //
  // The next call that ends a step waits until the result of this one is known,
  // and returns its statistics. If the step has failed, that call, and any
  // other that depends on the step, returns the reason; weights that have been
  // updated since are unspecified. With a pool on the CPU, or without NCCL, the
  // gradients are there when this returns, as after FinishStep(). Calls that
  // need the result (SaveState(), RestoreState(), ZeroGradients(), closing the
  // session) wait for it. Otherwise what FinishStep() says holds.
  Result<AsyncStep> FinishStepAsync();

  // Sets the loss scale from the next step on that begins; the same on all
  // ranks. Returns kInvalidArgument, and changes nothing, if the scale or its
  // inverse is not a positive number. Must not run concurrently with
  // FinishStep().
  Status SetLossScale(float scale);

  // Updates the float32 weights from the step that has just finished.
  // weights[i] belongs to tensor i and has `elements` elements. The caller owns
  // it, and it is in the memory of the pool: on a GPU the update is submitted
  // to the stream, and the call does not wait for it. Only the weights of what
  // was sent change. A nonfinite step is skipped. The momentum lives in the
  // session.
  //
  // To be called once for each step, before the next step begins, else
  // kFailedPrecondition. With residual=momentum the momentum of every group
  // must be that of the options, else kInvalidArgument. After these two errors,
  // and after kResourceExhausted, nothing has changed; after any other error
  // the job ends. Must not run concurrently with FinishStep().
  Status OptimizerStep(const std::vector<OptimizerGroup>& groups);
  // The same, with all tensors in one group.
  Status OptimizerStep(const OptimizerOptions& config,
                       const std::vector<float*>& weights) {
    return OptimizerStep({{config, weights}});
  }

  // With the option `accumulate`, backward ADDS gradients to what the pool
  // holds: zeros at first, and later, in chunks that CSC has kept back, what
  // was kept. This call is what `zero_grad` is to a framework: after
  // FinishStep(), and after the update, it zeroes what the step sent (nothing
  // if the step was nonfinite, because the pool then keeps all of it). Nobody
  // else may zero or change the pool. A gradient that is marked before this
  // call ends the job. With a pool on a GPU it is submitted to the stream that
  // gradients are computed on.
  //
  // Between FinishStep() and this call, chunks that were sent hold the result
  // of the step, and others hold what is kept back, multiplied by the momentum
  // if residual=momentum; it is not zero with residual=plain either, so an
  // optimiser must know selection(). GradientAbsent() leaves the tensor as it
  // is. SaveState(), RestoreState() and SetLossScale() come before backward
  // adds anything.
  //
  // Has no effect without `accumulate`, and when there is nothing to zero.
  // Returns kFailedPrecondition within a step. Must not run concurrently with
  // FinishStep().
  Status ZeroGradients();

  // The chunks whose gradients the last finished step exchanged: one byte (0 or
  // 1) per chunk; empty when dense. Must not run concurrently with
  // FinishStep().
  std::vector<std::uint8_t> selection() const;

  // Returns this rank's residual, momentum, selection, loss scale and step
  // number. May be called between steps only, else kFailedPrecondition.
  Result<std::vector<std::byte>> SaveState() const;
  // Returns the size of SaveState()'s result without fetching or copying data.
  Result<std::size_t> StateBytes() const;
  // Restores what SaveState() returned. This is a collective: all ranks call,
  // each with its own rank's state of the same run and step. Either all of them
  // go on from there, or no session changes. In that case every rank is told
  // whose state was refused, and why:
  // * kDataLoss: the state is damaged or empty.
  // * kInvalidArgument: the state belongs to another rank, to another run or
  //   step than rank 0's state, or to other tensors or settings. Settings that
  //   say only how gradients travel (segments, buckets, connections, algorithm)
  //   may differ.
  // * kFailedPrecondition: a step is under way.
  // A gradient that is marked while this call runs ends the job. Must not run
  // concurrently with FinishStep().
  Status RestoreState(std::span<const std::byte> state);

  // True if this process is a fork of the one that opened the session. Costs a
  // load.
  bool forked() const;
  // Returns OK, or kFailedPrecondition in a fork.
  Status CheckProcess() const;

 private:
  struct Parts;
  explicit GradientSession(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace gradientflow
