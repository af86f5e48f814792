#pragma once

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

// Communication hooks of DistributedDataParallel. DDP gathers gradients in
// buckets; for each full bucket, in the order of their indices and alike on all
// ranks, its Reducer calls Run() from within backward, and at the end of
// backward Finish(), in the same order. No Python on the way.
//
// Next: hook_cast.h (16 bits on the wire), hook_csc.h (sparse).
namespace gft {

// What a hook has done on this rank.
struct HookStats {
  uint64_t steps = 0;
  // What allreduces were asked to exchange, in the wire's element type. How
  // much of it travels is for the process group: in shared memory, nothing.
  uint64_t payload_bytes = 0;
  // Of the last step, over all buckets; 0 when the hook sends all as one.
  uint64_t chunks = 0;
  uint64_t selected_chunks = 0;
  // Of a chunk; 0 where there are none.
  uint64_t chunk_elements = 0;
};

// Shared by the Reducer and by Python's handle. Run() and Finish() come from
// the thread that drives backward; the rest is for between steps.
class Hook {
 public:
  Hook() = default;
  virtual ~Hook() = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // Starts the bucket's exchange. The future completes with its flat buffer,
  // which then holds the mean over the ranks.
  virtual c10::intrusive_ptr<c10::ivalue::Future> Run(
      c10d::GradBucket& bucket) = 0;
  // `result`: what Run()'s future, now complete, holds. Returns the buffer.
  virtual at::Tensor Finish(const c10::IValue& result) = 0;
  virtual HookStats stats() const = 0;
};

// Makes `hook` the Reducer's; it can have one, and only before its first
// backward (c10::Error otherwise): after that, buckets and optimiser know
// gradients that the hook has not seen.
void Register(c10d::Reducer& reducer, std::shared_ptr<Hook> hook);

// Throws c10::ValueError for a bucket of sparse gradients: `hook` says whose
// limit that is.
void CheckDense(const c10d::GradBucket& bucket, const char* hook);

}  // namespace gft
