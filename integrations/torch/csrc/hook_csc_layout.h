#pragma once

#include <ATen/core/Tensor.h>
#include <integrations/c/gradientflow_csc.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

namespace gft {

// What CSC keeps for one of DDP's buckets, beside what the library does.
struct CscBucket {
  std::vector<size_t> parameters;  // Indices in CscModel, in order.
  at::ScalarType type = at::kFloat;
  int64_t elements = 0;
  gf_csc_bucket* core = nullptr;  // Null: of a type that is sent undivided.
  bool by_tensors = false;        // Passes are torch's operators.
  // Flat, in float32, on the bucket's device, filled up to whole chunks.
  at::Tensor residual;
  // Views of it, one for each parameter, in the parameter's shape.
  std::vector<at::Tensor> kept;
  at::Tensor norms;  // By chunk, of the last step.

  // Of the step under way.
  at::Tensor buffer;
  at::Tensor packed;          // See gf_csc_bucket.
  at::Tensor packed_storage;  // What `packed` is the beginning of.
  at::Tensor means;           // With by_tensors: those of selected chunks.
  at::Tensor bad;             // Bool: a rank had an inf or NaN here.
};

// What does not change while a hook lives.
struct CscModel {
  std::vector<at::Tensor> parameters;  // All that DDP reduces, in its order.
  std::vector<bool> always_dense;      // By parameter.
  gf_csc_config config;
  bool by_tensors = false;  // Torch's operators on host memory, too.
};

// What a rank needs to go on where it stopped.
struct CscState {
  uint64_t step = 0;  // That comes next.
  float loss_scale = 1.0F;
  std::vector<std::vector<size_t>> buckets;    // Parameters, by bucket.
  std::vector<std::vector<uint8_t>> selected;  // By bucket and chunk.
  std::vector<at::Tensor> residuals;  // By parameter; undefined: nothing.
};

// Which parameters lie in which buckets. DDP changes that after its first step,
// and a restored run begins anew; what is kept back belongs to parameters and
// moves with them.
class CscLayout {
 public:
  // Goes on from `state`, with no bucket met.
  CscLayout(std::shared_ptr<const CscModel> model, CscState state);

  // The entry of a bucket that DDP is about to exchange. Buckets come in the
  // order of their indices. If it holds other parameters than it did, it and
  // those after it are learnt anew: all their chunks are selected, unless the
  // state knows them.
  CscBucket& Meet(const c10d::GradBucket& bucket);
  // The step had `count` buckets: forgets any others.
  void EndStep(size_t count);

  // References stay valid until their bucket is forgotten.
  std::deque<CscBucket>& buckets() { return buckets_; }
  gf_csc* core() const { return core_.get(); }

  void SetLossScale(float scale);
  CscState Save() const;  // Copies, on the CPU.

 private:
  CscBucket Describe(const c10d::GradBucket& bucket) const;
  void AddToCore(const c10d::GradBucket& from, CscBucket& bucket);
  void Forget(size_t first);

  struct Close {
    void operator()(gf_csc* core) const { gf_csc_close(core); }
  };
  const std::shared_ptr<const CscModel> model_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  std::unique_ptr<gf_csc, Close> core_;
  std::deque<CscBucket> buckets_;
  // The state that it went on from, as far as buckets have not taken it over.
  // It also holds residuals of parameters that are in no known bucket.
  CscState state_;
};

}  // namespace gft
