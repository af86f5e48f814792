#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "hook_csc_ops.h"

namespace gft {
namespace {

// A flat tensor's whole chunks as rows of a matrix, and the short one.
struct Chunked {
  Chunked(const at::Tensor& flat, const CscBucket& bucket) {
    const int64_t rows = bucket.elements / bucket.chunk_elements;
    const int64_t whole = rows * bucket.chunk_elements;
    matrix = flat.narrow(0, 0, whole).view({rows, bucket.chunk_elements});
    tail = flat.narrow(0, whole, bucket.elements - whole);
  }

  at::Tensor matrix;
  at::Tensor tail;
};

at::Tensor Norms(const Chunked& chunked) {
  std::vector<at::Tensor> norms = {chunked.matrix.to(at::kFloat).abs().sum(1)};
  if (chunked.tail.numel() > 0) {
    norms.push_back(chunked.tail.to(at::kFloat).abs().sum().reshape({1}));
  }
  return at::cat(norms);
}

// Ids of the chunks that are selected, or not; whole ones, and the short one.
struct Chosen {
  Chosen(const CscBucket& bucket, bool selected) {
    const size_t rows =
        static_cast<size_t>(bucket.elements / bucket.chunk_elements);
    std::vector<int64_t> ids;
    for (size_t c = 0; c < bucket.chunks(); ++c) {
      if ((bucket.selected[c] != 0) != selected) continue;
      all.push_back(static_cast<int64_t>(c));
      if (c < rows) {
        ids.push_back(static_cast<int64_t>(c));
      } else {
        tail = true;
      }
    }
    rows_of = at::tensor(ids, at::kLong).to(bucket.residual.device());
    count = static_cast<int64_t>(all.size());
    whole = static_cast<int64_t>(ids.size());
  }
  at::Tensor AllIds(const at::Device& device) const {
    return at::tensor(all, at::kLong).to(device);
  }

  at::Tensor rows_of;
  std::vector<int64_t> all;
  bool tail = false;
  int64_t count = 0;
  int64_t whole = 0;
};

class TensorOps final : public CscOps {
 public:
  void Pack(CscBucket& bucket, at::ScalarType wire,
            double scale) const override {
    PreparePacked(bucket, wire);
    const Chosen sent(bucket, true);
    const Chosen kept(bucket, false);
    bucket.residual.add_(bucket.buffer);
    const Chunked residual(bucket.residual, bucket);
    bucket.norms = Norms(residual);
    int64_t end = sent.whole * bucket.chunk_elements;
    const at::Tensor rows = residual.matrix.index_select(0, sent.rows_of);
    residual.matrix.index_copy_(
        0, sent.rows_of,
        Send(bucket, rows.flatten(), 0, scale).view(rows.sizes()));
    if (sent.tail) {
      residual.tail.copy_(Send(bucket, residual.tail, end, scale));
      end += residual.tail.numel();
    }
    const at::Tensor kept_norms =
        bucket.norms.index_select(0, kept.AllIds(bucket.norms.device()));
    bucket.packed.narrow(0, end, kept.count)
        .copy_(at::where(kept_norms.isfinite(), 0.0F,
                         std::numeric_limits<float>::quiet_NaN()));
    bucket.residual.nan_to_num_(0.0, 0.0, 0.0);
  }

  void Unpack(CscBucket& bucket) const override {
    const Chosen sent(bucket, true);
    const Chosen kept(bucket, false);
    const Chunked buffer(bucket.buffer, bucket);
    const int64_t width = bucket.chunk_elements;
    int64_t end = sent.whole * width;
    buffer.matrix.index_copy_(0, sent.rows_of,
                              bucket.packed.narrow(0, 0, end)
                                  .view({sent.whole, width})
                                  .to(bucket.type));
    if (sent.tail) {
      buffer.tail.copy_(bucket.packed.narrow(0, end, buffer.tail.numel()));
      end += buffer.tail.numel();
    }
    const at::Tensor marks =
        bucket.packed.narrow(0, end, kept.count).to(bucket.type);
    buffer.matrix.index_copy_(
        0, kept.rows_of,
        marks.narrow(0, 0, kept.whole).unsqueeze(1).expand({-1, width}));
    if (kept.tail) buffer.tail.copy_(marks.narrow(0, kept.whole, 1));
    const at::Tensor ids = sent.AllIds(bucket.norms.device());
    const at::Tensor norms = Norms(buffer).index_select(0, ids);
    bucket.norms.index_copy_(0, ids, norms);
    bucket.bad = at::logical_or(norms.isfinite().all().logical_not(),
                                marks.isfinite().all().logical_not());
  }

  // The device is not asked: what `bad` says is computed with.
  void TakeBack(CscBucket& bucket, const at::Tensor& bad) const override {
    const Chosen sent(bucket, true);
    const Chunked buffer(bucket.buffer, bucket);
    const Chunked residual(bucket.residual, bucket);
    residual.matrix.index_add_(
        0, sent.rows_of,
        Finite(buffer.matrix.index_select(0, sent.rows_of), bad));
    if (sent.tail) residual.tail.add_(Finite(buffer.tail, bad));
    for (size_t c = 0; c < bucket.chunks(); ++c) bucket.dirty[c] = 1;
  }

 private:
  // Rounds to the gradients' type on the way, as sums in place do. Returns
  // what that took: stays behind (see gf_csc_residual()).
  static at::Tensor Send(CscBucket& bucket, const at::Tensor& sums,
                         int64_t begin, double scale) {
    const at::Tensor rounded = sums.to(bucket.type).to(at::kFloat);
    bucket.packed.narrow(0, begin, sums.numel()).copy_(rounded.mul(scale));
    return sums.sub(rounded);
  }
  static at::Tensor Finite(const at::Tensor& means, const at::Tensor& bad) {
    return at::where(bad, means.to(at::kFloat).nan_to_num(0.0, 0.0, 0.0), 0.0F);
  }
};

}  // namespace

const CscOps& CscOps::OfTensors() {
  static const TensorOps ops;
  return ops;
}

}  // namespace gft
