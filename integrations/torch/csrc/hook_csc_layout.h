#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <integrations/c/gradientflow_csc.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

namespace gft {

// What CSC keeps for one of DDP's buckets, beside what the library keeps. All
// but `buffer` is on the layout's device.
struct CscBucket {
  std::vector<size_t> parameters;  // Indices in CscModel, in order.
  gf_csc_bucket* core = nullptr;   // Without chunks if it is sent whole.
  at::Tensor residual;             // Flat, in float32.
  // Views of it, one for each parameter, in the parameter's shape.
  std::vector<at::Tensor> kept;
  at::Tensor norms;           // By chunk, of the last step.
  at::Tensor packed_storage;  // `packed` is its beginning.

  // For the current step:
  at::Tensor buffer;
  at::Tensor grads;   // `buffer`, or its copy.
  at::Tensor packed;  // See gf_csc_bucket.
};

// What does not change while a hook lives.
struct CscModel {
  std::vector<at::Tensor> parameters;  // All that DDP reduces, in its order.
  std::vector<bool> always_dense;      // By parameter.
  gf_csc_config config;
  bool staged = false;  // For tests: copies are made of host memory, too.
};

// What a rank needs to continue where it stopped.
struct CscState {
  uint64_t step = 0;  // The next one.
  float loss_scale = 1.0F;
  std::vector<std::vector<size_t>> buckets;  // Parameters, by bucket.
  std::vector<at::Tensor> selected;   // By bucket: a byte for each chunk.
  std::vector<at::Tensor> residuals;  // By parameter; undefined: none.
};

// Which parameters lie in which buckets. DDP changes that after its first step,
// and a restored run starts with new buckets. The residual belongs to
// parameters, and moves with them.
//
// The library does the passes where the gradients are, if that is host memory
// or one GPU that it can use. Otherwise they are staged: it works on copies in
// host memory.
class CscLayout {
 public:
  // Continues from `state`, before any bucket has been met.
  CscLayout(std::shared_ptr<const CscModel> model, CscState state);
  ~CscLayout();
  CscLayout(const CscLayout&) = delete;
  CscLayout& operator=(const CscLayout&) = delete;

  // The entry of a bucket that DDP is about to exchange. Buckets come in the
  // order of their indices. If a bucket does not hold the parameters that it
  // held before, its entry and all later ones are replaced: all their chunks
  // are selected, unless the state has a selection for them.
  CscBucket& Meet(const c10d::GradBucket& bucket);

  // Returns what to exchange for bucket->buffer: the mean of it. `scale` is
  // applied beforehand.
  at::Tensor Pack(CscBucket* bucket, double scale, at::ScalarType wire) const;
  // Takes the result of the exchange.
  void Unpack(const CscBucket& bucket, const at::Tensor& mean) const;
  // The step had `count` buckets: removes the entries of any others. Returns
  // the norms of all chunks, to be summed.
  at::Tensor EndStep(size_t count);
  // Throws c10::ValueError unless `state` fits the model. Changes nothing.
  static void Check(const std::shared_ptr<const CscModel>& model,
                    const CscState& state);

  // References stay valid until the entry is removed.
  std::deque<CscBucket>& buckets() { return buckets_; }
  gf_csc* core() const { return core_.get(); }

  void SetLossScale(float scale);
  CscState Save() const;  // Copies, on the CPU.

 private:
  gf_csc* Open(gf_csc_config config);
  // Blocks until the layout's device has done its work. Then the library may
  // give memory back.
  void AwaitDevice() const;
  // The current stream of the layout's device, for the library.
  void* Stream() const;
  bool Staged(const CscBucket& bucket) const {
    return model_->staged || bucket.buffer.device() != device_;
  }
  std::vector<size_t> ParametersOf(const c10d::GradBucket& bucket) const;
  CscBucket Learn(const c10d::GradBucket& from, std::vector<size_t> parameters);
  void Forget(size_t first);

  struct Close {
    void operator()(gf_csc* core) const { gf_csc_close(core); }
  };
  const std::shared_ptr<const CscModel> model_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  at::Device device_ = at::kCPU;
  std::unique_ptr<gf_csc, Close> core_;
  std::deque<CscBucket> buckets_;
  // The rest of the state that it continued from, as far as buckets have not
  // taken it over. It also holds residuals of parameters that are in no known
  // bucket.
  CscState state_;
};

}  // namespace gft
