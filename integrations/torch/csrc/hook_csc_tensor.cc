#include "hook_csc_tensor.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

// A bucket is a matrix of chunks here, the last row filled up with zeros.
namespace gft {
namespace {

constexpr float kMark = std::numeric_limits<float>::quiet_NaN();

// The rows that are sent, or not.
at::Tensor Rows(const CscBucket& bucket, bool sent) {
  std::vector<int64_t> ids;
  for (int64_t c = 0; c < bucket.chunks(); ++c) {
    if ((bucket.selected()[c] != 0) == sent) ids.push_back(c);
  }
  return at::tensor(ids, at::kLong).to(bucket.residual.device());
}

at::Tensor Finite(const at::Tensor& values) {
  return values.nan_to_num(0.0, 0.0, 0.0);
}

at::Tensor Norms(const at::Tensor& rows, float factor) {
  return rows.to(at::kFloat).abs().sum(1).mul_(factor);
}

// The beginning of bucket.packed, and the marks behind it.
at::Tensor Sent(const CscBucket& bucket) {
  return bucket.packed.narrow(0, 0, bucket.packed.numel() - bucket.marks);
}
at::Tensor Marks(const CscBucket& bucket) {
  return bucket.packed.narrow(0, bucket.packed.numel() - bucket.marks,
                              bucket.marks);
}

}  // namespace

void PackTensor(CscBucket& bucket, const gf_csc_factors& factors,
                double scale) {
  const at::Tensor sent = Rows(bucket, true);
  bucket.residual.narrow(0, 0, bucket.elements).add_(bucket.buffer);
  const at::Tensor rows = bucket.residual.view({bucket.chunks(), -1});
  bucket.norms = Norms(rows, factors.kept_norm);
  // Rounded to the gradients' type on the way, as sums in place are: what that
  // takes stays behind.
  const at::Tensor sums = rows.index_select(0, sent);
  const at::Tensor rounded = sums.to(bucket.type).to(at::kFloat);
  const at::Tensor packed = Sent(bucket);
  packed.copy_(rounded.flatten().narrow(0, 0, packed.numel()).mul(scale));
  const at::Tensor kept = bucket.norms.index_select(0, Rows(bucket, false));
  Marks(bucket).copy_(at::where(kept.isfinite(), 0.0F, kMark));
  if (factors.keep_factor != 1.0F) rows.mul_(factors.keep_factor);
  rows.index_copy_(0, sent, sums.sub(rounded));
  rows.nan_to_num_(0.0, 0.0, 0.0);
}

void UnpackTensor(CscBucket& bucket, const gf_csc_factors& factors) {
  const at::Tensor sent = Rows(bucket, true);
  const at::Tensor rows =
      at::zeros_like(bucket.residual, bucket.buffer.options())
          .view({bucket.chunks(), -1});
  const at::Tensor packed = Sent(bucket);
  bucket.means = at::zeros({sent.numel(), rows.size(1)}, rows.options());
  bucket.means.flatten().narrow(0, 0, packed.numel()).copy_(packed);
  const at::Tensor marks = Marks(bucket).to(bucket.type);
  rows.index_copy_(0, sent, bucket.means);
  rows.index_copy_(0, Rows(bucket, false),
                   marks.unsqueeze(1).expand({-1, rows.size(1)}));
  bucket.buffer.copy_(rows.flatten().narrow(0, 0, bucket.elements));
  const at::Tensor norms = Norms(bucket.means, factors.sent_norm);
  bucket.norms.index_copy_(0, sent, norms);
  bucket.bad = at::logical_or(norms.isfinite().all().logical_not(),
                              marks.isfinite().all().logical_not());
}

void SkipTensor(CscBucket& bucket, const gf_csc_factors& factors,
                const at::Tensor& bad) {
  const at::Tensor sent = Rows(bucket, true);
  const at::Tensor rows = bucket.residual.view({bucket.chunks(), -1});
  const at::Tensor back =
      Finite(bucket.means.to(at::kFloat).mul(factors.give_back));
  rows.index_copy_(
      0, sent,
      Finite(rows.index_select(0, sent).add_(at::where(bad, back, 0.0F))));
}

}  // namespace gft
