#pragma once

#include <ATen/core/Tensor.h>
#include <integrations/c/gradientflow.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

namespace gft {

// What CSC keeps for one of DDP's buckets, beside what the library does.
struct CscBucket {
  int64_t chunks() const { return norms.defined() ? norms.numel() : 0; }
  const uint8_t* selected() const;  // By chunk.

  std::vector<size_t> parameters;  // Indices in CscModel, in order.
  at::ScalarType type = at::kFloat;
  int64_t elements = 0;
  gf_csc_bucket* core = nullptr;  // Null: of a type that is sent undivided.
  bool by_tensors = false;        // Passes are torch's operators.
  // Float32, flat, on the bucket's device, of whole chunks; and its parts, by
  // parameter, in the shapes of the parameters.
  at::Tensor residual;
  std::vector<at::Tensor> kept;
  at::Tensor norms;  // By chunk, of the last step.

  // Of the step under way.
  at::Tensor buffer;
  at::Tensor packed;  // See gf_csc_packed_elements().
  int64_t marks = 0;
  at::Tensor means;           // With by_tensors: those of selected chunks.
  at::Tensor bad;             // Bool: a rank had an inf or NaN here.
  at::Tensor packed_storage;  // What `packed` is the beginning of.
};

// All parameters that DDP reduces, in its order.
struct CscModel {
  CscModel(std::vector<std::string> names, std::vector<at::Tensor> parameters,
           std::vector<bool> always_dense);
  const std::vector<std::string> names;
  const std::vector<at::Tensor> parameters;
  const std::vector<bool> always_dense;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of;
};

// A selection, and the buckets that it speaks of.
struct CscSelection {
  std::vector<std::vector<size_t>> parameters;  // By bucket, in order.
  std::vector<std::vector<uint8_t>> selected;   // By bucket and chunk.
};

// What a rank needs to go on where it stopped.
struct CscState {
  uint64_t step = 0;  // That comes next.
  float loss_scale = 1.0F;
  CscSelection selection;             // For that step.
  std::vector<at::Tensor> residuals;  // By parameter; undefined: nothing.
};

// Which parameters lie in which buckets. DDP changes that after its first step,
// and a restored run begins anew; what is kept back belongs to parameters and
// moves with them.
class CscLayout {
 public:
  // Goes on from `state`. `by_tensors`: torch's operators on the host, too.
  CscLayout(std::shared_ptr<const CscModel> model, gf_csc_config config,
            bool by_tensors, CscState state);

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
  const std::shared_ptr<const CscModel>& model() const { return model_; }

  void SetLossScale(float scale);
  // Copies, on the CPU.
  CscState Save() const;

 private:
  struct Close {
    void operator()(gf_csc* core) const { gf_csc_close(core); }
  };
  CscBucket Describe(const c10d::GradBucket& bucket) const;
  void AddToCore(const c10d::GradBucket& from, CscBucket& bucket);
  void Forget(size_t first);
  static void TakeResiduals(const CscBucket& bucket,
                            std::vector<at::Tensor>* residuals);

  const std::shared_ptr<const CscModel> model_;
  const int64_t chunk_elements_;
  const bool by_tensors_;
  std::unique_ptr<gf_csc, Close> core_;
  std::deque<CscBucket> buckets_;
  // With the residuals of parameters that are in no known bucket.
  CscState state_;
};

}  // namespace gft
