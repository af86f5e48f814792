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
  // On a device these are differences of its events: they measure the device's
  // time, not the host's.
  double backward_seconds = 0;  // From the first to the last gradient.
  double exposed_seconds = 0;   // From there to the end of communication.
  double hidden_seconds = 0;    // Communication during backward.
  // True if the gradients of some rank held an infinity or NaN; the same on
  // every rank. The optimiser skips such a step; residuals keep what is finite.
  // With CSC, if gradients that are kept back read as zero
  // (Options::zero_kept), all gradients of such a step read as NaN.
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
  // A cudaEvent_t: the gradients are there when the device reaches it. Null if
  // they are there already. The session owns it, and it is valid until the
  // session's next step ends.
  void* event = nullptr;
  // The statistics of the latest step whose result is known, unless an earlier
  // call has returned them. If `event` is null that is this step, otherwise the
  // step before or none.
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
  // generation order. Of `options`, only the settings of the sections
  // "Gradients" (but not `algorithm`) and "Coarse-grained sparse communication"
  // count here, and `profile` and `profile_batch`; settings.md lists those that
  // must be equal on all ranks. If these or the tensors differ, every rank gets
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

  // Closes the session. Blocks for up to 5 seconds in the middle of a step: if
  // all ranks close within that time, what is in flight ends and the job goes
  // on. Otherwise the job ends if collectives of the session are in flight, if
  // this rank closes in the middle of a step and another one does not close in
  // time, or if another rank goes on to a step in which this rank takes no
  // part. REQUIRES that no other call on the session runs.
  ~GradientSession();
  GradientSession(const GradientSession&) = delete;
  GradientSession& operator=(const GradientSession&) = delete;

  Communicator& communicator() const;
  int rank() const;  // In the session's group, like size().
  int size() const;
  const Options& options() const;  // As in force.
  std::size_t tensors() const;

  // Where the gradient of tensor `i` lives, in pool_dtype; valid as long as the
  // session, which owns the memory. pool() holds all gradients, each at a
  // multiple of 16 bytes or of 128 (buckets/pool_layout.h). What lies between
  // two of them is zero, and must stay so: it is sent with its neighbours and
  // counts in the norms of chunks. Both are in the memory of pool().device,
  // which is the communicator's. REQUIRES i < tensors().
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
  // the session. A stream of another device, or one that is being captured into
  // a graph, is refused, and the stream stays as it was.
  Status SetStream(void* native);

  // Lends gradient(i) to the session until FinishStep() returns. Call it once
  // per tensor and step, in any order, on any thread; the first call begins the
  // step. Wait-free, except for the tensor that completes a section of the
  // pool, which may wake the progress thread. A mistake here (a bad index, a
  // second call) ends the job: FinishStep() returns the error, and gradients
  // that become ready later are not sent.
  void GradientReady(std::size_t i);
  // Says that the tensor took no part in this step on this rank. It counts as
  // zeros, which are written to it. Call it instead of GradientReady(i), under
  // the same rules.
  void GradientAbsent(std::size_t i);

  // Blocks until the gradients of the step are aggregated: each is the mean (or
  // sum) over the ranks. In a float32 pool it is divided by the loss scale; in
  // a 16-bit pool it still contains the loss scale (StepStats::gradient_scale).
  // All calls of GradientReady() and GradientAbsent() for the step have taken
  // effect then, though one of them may not yet have returned to its caller; it
  // must return before the session is closed.
  //
  // Returns kFailedPrecondition if a tensor is neither ready nor absent; the
  // step then goes on. After any other error, whose code says what the caller
  // can do (StatusCode), all gradients are unspecified and the session takes no
  // more steps: calls that need one return the reason of the first failure. One
  // thread at a time; not from a completion.
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

  // Sets the loss scale for all steps that begin after this call; all ranks
  // must set the same. Returns kInvalidArgument, and changes nothing, if the
  // scale or its inverse is not a positive finite number. Must not run
  // concurrently with FinishStep().
  Status SetLossScale(float scale);

  // Updates the float32 weights from the step that has just finished.
  // weights[i] belongs to tensor i and has TensorSpec::elements elements. The
  // caller owns it, and it is on the same device as the pool. On a GPU the
  // update is submitted to the stream of SetStream(), and the call does not
  // wait for it. Only the weights of what was sent change. A nonfinite step is
  // skipped. The momentum lives in the session.
  //
  // Call it at most once for each step, before the next step begins, and while
  // the stream is not being captured, else kFailedPrecondition. With
  // residual=momentum the momentum of every group must be that of the options,
  // else kInvalidArgument. After these two errors, and after
  // kResourceExhausted, nothing has changed; after any other error the job
  // ends. Must not run concurrently with FinishStep().
  Status OptimizerStep(const std::vector<OptimizerGroup>& groups);
  // The same, with all tensors in one group.
  Status OptimizerStep(const OptimizerOptions& config,
                       const std::vector<float*>& weights) {
    return OptimizerStep({{config, weights}});
  }

  // With the option `accumulate`, backward ADDS gradients to what the pool
  // holds: zeros at first; later, in chunks that CSC has kept back, the
  // gradients that were kept. This call takes the place of a framework's
  // `zero_grad`. Call it after FinishStep() and after the update: it zeroes
  // what the step sent, or nothing if the step was nonfinite, because the pool
  // then keeps all of it. No other code may zero or change the pool. If a
  // gradient is marked before this call, the job ends. With a pool on a GPU the
  // work is submitted to the stream of SetStream().
  //
  // Between FinishStep() and this call, chunks that were sent hold the result
  // of the step, and the others hold what is kept back, multiplied by the
  // momentum if residual=momentum. Kept chunks are not zero, not even with
  // residual=plain, so an optimiser must know selection(). GradientAbsent()
  // leaves the tensor as it is. Call SaveState(), RestoreState() and
  // SetLossScale() before backward adds anything.
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
  // Restores what SaveState() returned. This is a collective: all ranks call
  // it, each with its own rank's state of the same run and step. Either all of
  // them go on from there, or no session changes, and the error on every rank
  // says whose state was refused, and why:
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
