#pragma once

#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

// Communication hooks of DistributedDataParallel. DDP gathers gradients in
// buckets. For each full bucket, in the order of their indices on all ranks,
// its Reducer calls Run() from within backward, and at the end of backward
// Finish(), in the same order. No Python runs on the way.
//
// Next: hook_cast.h (16 bits on the wire), hook_csc.h (sparse), hook_profile.h
// (what a step takes).
namespace gft {

class HookProfile;

// What a hook has done on this rank.
struct HookStats {
  uint64_t steps = 0;
  // The bytes that allreduces were asked to exchange, in the wire's element
  // type. The process group decides how much of it travels: in shared memory
  // nothing does.
  uint64_t payload_bytes = 0;
  // The chunks of the last step, over all buckets; 0 if the hook sends buckets
  // whole.
  uint64_t chunks = 0;
  uint64_t selected_chunks = 0;
  // The elements of a chunk; 0 if there are no chunks.
  uint64_t chunk_elements = 0;
};

// A hook, shared by the Reducer and Python's handle. The thread that drives
// backward calls Run() and Finish(); all else is called between steps.
class Hook {
 public:
  Hook() = default;
  virtual ~Hook() = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // Starts the bucket's exchange. The future completes with the bucket's flat
  // buffer, which then holds the mean over the ranks.
  virtual c10::intrusive_ptr<c10::ivalue::Future> Run(
      c10d::GradBucket& bucket) = 0;
  // `result` is the value of Run()'s future, which has completed. Returns the
  // buffer.
  virtual at::Tensor Finish(const c10::IValue& result) = 0;
  virtual HookStats stats() const = 0;
};

// Makes `hook` the Reducer's hook. `profile`, which may be null, is made of its
// steps. A Reducer can have one, and only before its first backward (else
// c10::Error): after that, its buckets and the optimiser have seen gradients
// that the hook has not.
void Register(c10d::Reducer& reducer, std::shared_ptr<Hook> hook,
              std::shared_ptr<HookProfile> profile);

// Throws c10::ValueError for a bucket of sparse gradients; `hook` names the
// hook that cannot take it.
void CheckDense(const c10d::GradBucket& bucket, const char* hook);

}  // namespace gft
