#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"
#include "gradientflow/optimizer/optimizer_config.h"

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
  // Bytes of gradients sent to other ranks, without headers. In shared memory,
  // where nothing has the wire's type: bytes read from and written to other
  // ranks' buffers, in the pool's type. Other collectives that ran meanwhile do
  // not count, here and in the times. Over all ranks both come to 2 (p - 1)
  // times the pool, for a dense step by ring, two-sync or shared.
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
  // Exchanged gradients are the true ones times this: the loss scale in a pool
  // of 16 bits, whose range would lose small gradients that were unscaled; 1 in
  // a pool of float32. Divide by it in float32. OptimizerStep() does.
  float gradient_scale = 1.0F;
};

// The gradients of one model on one rank, and the training steps that exchange
// them. Lives on a communicator, which several sessions (several models) may
// share: they share its links and its thread, and their steps do not wait for
// each other.
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
// Belongs to the process that opened it. In a fork of that process every call
// is refused, gradient() and pool() are the fork's own copy, and destroying the
// session does nothing.
class GradientSession {
 public:
  // Opens a session of the ranks of `group` of `comm` (0: all of them; else see
  // Communicator::OpenGroup(), and the group stays open as long). A collective:
  // all of those ranks call alike, in the same place among their plain calls.
  //
  // `tensors` in forward order: backward makes them last to first, and the pool
  // is laid out in that, the generation order. There may be none. `options`:
  // those of sections "Gradients" and "Coarse-grained sparse communication"
  // count here, and must not differ between ranks, nor must the tensors. A rank
  // that differs or refuses is named, with the first difference or the reason,
  // by kInvalidArgument on every rank.
  //
  // Shared-memory collectives, and GPU pools, serve one session at a time: the
  // gradients of further sessions open at once travel as messages, and with a
  // GPU those are kUnimplemented.
  static Result<std::unique_ptr<GradientSession>> Open(
      std::shared_ptr<Communicator> comm,
      const std::vector<TensorSpec>& tensors, const Options& options,
      GroupId group = 0);

  // The same on a communicator of its own, of all ranks; see
  // Communicator::Open().
  static Result<std::unique_ptr<GradientSession>> Open(
      const Options& options, const std::vector<TensorSpec>& tensors,
      const Exchange& exchange = {});

  // Collectives of this session in flight end the job, and so does a rank that
  // goes on with a step that this one has not taken part in.
  ~GradientSession();
  GradientSession(const GradientSession&) = delete;
  GradientSession& operator=(const GradientSession&) = delete;

  Communicator& communicator() const;
  int rank() const;  // In the session's group, as size.
  int size() const;
  const Options& options() const;  // As in force.
  std::size_t tensors() const;

  // Where tensor `i`'s gradient lives, in pool_dtype; valid as long as the
  // session. The pool is all of them, without gaps. In the memory of
  // pool().device: the communicator's.
  BufferView gradient(std::size_t i) const;
  BufferView pool() const;
  std::size_t pool_offset(std::size_t i) const;  // Elements.

  // With a pool on a GPU: the stream (cudaStream_t) that gradients are computed
  // on, the legacy default stream until this is called. GradientReady(i) then
  // means that the work that writes gradient(i) has been submitted to it;
  // communication waits for that on the device, and the stream never waits for
  // communication. Between steps, else kFailedPrecondition; one thread with
  // FinishStep(). The stream is the caller's, and outlives the session. Without
  // effect with a pool on the CPU.
  Status SetStream(void* native);

  // Lends gradient(i) to the session until FinishStep() returns. Once per
  // tensor and step, in any order, from any thread; the first one begins the
  // step. Wait-free but for the tensor that completes a bucket, which may wake
  // the progress thread. A mistake here (bad index, twice) ends the job, as
  // FinishStep() says: nothing that becomes ready after it is sent.
  void GradientReady(std::size_t i);
  // The tensor took no part in this step on this rank: counts as zeros, which
  // are written to it. In place of GradientReady(i), not besides it.
  void GradientAbsent(std::size_t i);

  // Blocks until the step's gradients are aggregated: mean (or sum) over the
  // ranks, divided by the loss scale in a pool of float32, still times it in
  // one of 16 bits (StepStats::gradient_scale). kFailedPrecondition, and the
  // step goes on, if a tensor is neither ready nor absent; hooks that are still
  // inside GradientReady() are waited for. After any other error every gradient
  // is unspecified and the session takes no more steps: what needs them fails
  // with the reason of the first failure. One thread at a time; not in a
  // completion.
  Result<StepStats> FinishStep();

  // Takes effect with the next step to begin; the same on all ranks.
  // kInvalidArgument, and nothing changes, if it or its inverse is not a
  // positive number. One thread with FinishStep().
  Status SetLossScale(float scale);

  // Updates the float32 weights from the step just finished; weights[i] is
  // tensor i's, `elements` long, the caller's, where the pool is: with a GPU
  // the update is submitted to the stream, and nobody waits. Only what was sent
  // changes.
  // Skips a nonfinite step. Momentum lives in the session. Once for a step, and
  // before the next one begins: else kFailedPrecondition. With
  // residual=momentum, every group's momentum is that of the options, else
  // kInvalidArgument; after that, or kResourceExhausted, nothing has changed;
  // after other errors the job ends. One thread with FinishStep().
  Status OptimizerStep(const std::vector<OptimizerGroup>& groups);
  // The same with all tensors in one group.
  Status OptimizerStep(const OptimizerConfig& config,
                       const std::vector<float*>& weights) {
    return OptimizerStep({{config, weights}});
  }

  // Chunks whose gradients the last finished step exchanged, one byte each (0
  // or 1); empty when dense. One thread with FinishStep().
  std::vector<std::uint8_t> selection() const;

  // Residual, momentum, selection, loss scale and step number, of this rank.
  // Between steps only, else kFailedPrecondition.
  Result<std::vector<std::byte>> SaveState() const;
  // How long SaveState() is; fetches and copies nothing.
  Result<std::size_t> StateBytes() const;
  // A collective: all ranks call, each with its own rank's state of one run and
  // one step. Either all go on from there or nobody's session changes, and
  // every rank hears whose state is refused, and why: damaged or no bytes
  // (kDataLoss), another rank's, of other tensors or settings but for how
  // gradients travel (segments, buckets, connections, algorithm), of another
  // run or step than rank 0's (kInvalidArgument), within a step
  // (kFailedPrecondition). A gradient that is marked meanwhile ends the job.
  // One thread with FinishStep().
  Status RestoreState(std::span<const std::byte> state);

  // This process is a fork of the one that opened the session. Costs a load.
  bool forked() const;
  // OK, or kFailedPrecondition in a fork.
  Status CheckProcess() const;

 private:
  struct Parts;
  explicit GradientSession(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace gradientflow
