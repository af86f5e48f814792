#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

namespace gft {

// Where a parameter's gradient lies in its bucket's flat buffer, in elements.
struct CscSegment {
  size_t parameter = 0;  // Index in CscLayout's list.
  int64_t begin = 0;
  int64_t count = 0;
};

// What CSC keeps for one bucket. Its flat buffer is cut into equal chunks; the
// last may be short.
struct CscBucket {
  std::vector<const c10::TensorImpl*> identity;  // Its parameters, in order.
  std::vector<CscSegment> segments;
  at::ScalarType type = at::kFloat;
  int64_t elements = 0;
  int64_t chunk_elements = 0;

  // By chunk; empty where the bucket's type is sent as it is, undivided.
  std::vector<uint8_t> always;    // Holds part of an always-dense parameter.
  std::vector<uint8_t> selected;  // To be sent in the step under way.
  std::vector<uint8_t> dirty;     // The residual may differ from zero.
  at::Tensor residual;            // Float32, flat, on the bucket's device.

  // Of the step under way.
  at::Tensor buffer;
  at::Tensor packed;  // Selected chunks, then a mark for each other one.
  at::Tensor norms;   // By chunk: of the mean if sent, else of what is kept.
  at::Tensor bad;     // Bool: a rank had an inf or NaN here.
  at::Tensor packed_storage;  // What `packed` is the beginning of.

  size_t chunks() const { return selected.size(); }
  int64_t chunk_begin(size_t c) const {
    return static_cast<int64_t>(c) * chunk_elements;
  }
  int64_t chunk_count(size_t c) const {
    return std::min(chunk_elements, elements - chunk_begin(c));
  }
};

// A selection that was saved, and the buckets that it speaks of.
struct CscSelection {
  std::vector<std::vector<size_t>> parameters;  // By bucket, in order.
  std::vector<std::vector<uint8_t>> selected;   // By bucket and chunk.
};

// Which parameters lie in which buckets. DDP changes that after its first step,
// and a restored run begins anew; what is kept back belongs to parameters and
// moves with them.
class CscLayout {
 public:
  // All parameters that DDP reduces, in its order; `always_dense` by parameter.
  CscLayout(std::vector<std::string> names, std::vector<at::Tensor> parameters,
            std::vector<bool> always_dense, int64_t chunk_elements);

  // One of the same parameters that has met no bucket. Reads nothing that
  // changes.
  CscLayout Fresh() const {
    return {names_, parameters_, always_dense_, chunk_elements_};
  }

  // The entry of a bucket that DDP is about to exchange. Buckets come in the
  // order of their indices. If it holds other parameters than it did, it and
  // those after it are learnt anew: all their chunks are selected, unless
  // Expect() knows them.
  CscBucket& Meet(const c10d::GradBucket& bucket);
  // The step had `count` buckets: forgets any others.
  void EndStep(size_t count);

  // References stay valid until their bucket is forgotten.
  std::deque<CscBucket>& buckets() { return buckets_; }
  const std::deque<CscBucket>& buckets() const { return buckets_; }
  size_t chunks() const;

  const std::vector<std::string>& names() const { return names_; }
  const at::Tensor& parameter(size_t i) const { return parameters_[i]; }

  // What is kept back of a parameter: float32, of its shape, a copy on the
  // CPU. Undefined: nothing.
  at::Tensor ResidualOf(size_t parameter) const;
  // Forgets all buckets, and takes over what was saved: residuals by parameter
  // (undefined: none), and a selection.
  void Restore(std::vector<at::Tensor> residuals, CscSelection selection);
  CscSelection selection() const;
  // Multiplies all that is kept back.
  void Scale(float factor);

 private:
  void Forget(size_t first);
  CscBucket Learn(const c10d::GradBucket& bucket) const;
  void TakeResiduals(CscBucket& bucket);
  void TakeSelection(size_t index, CscBucket& bucket) const;

  const std::vector<std::string> names_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<bool> always_dense_;
  const int64_t chunk_elements_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  std::deque<CscBucket> buckets_;
  // Residuals of parameters that are in no known bucket.
  std::vector<at::Tensor> homeless_;
  CscSelection expected_;
};

}  // namespace gft
