#include "hook_csc_tensor.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

// Here a bucket is a matrix with one chunk per row; the last row is padded with
// zeros.
namespace gft {
namespace {

// The numbers of the rows that are sent, or of those that are kept.
at::Tensor Ids(const CscBucket& bucket, bool sent) {
  std::vector<int64_t> ids;
  for (size_t c = 0; c < bucket.core->chunks; ++c) {
    if ((bucket.core->selected[c] != 0) == sent) ids.push_back(c);
  }
  return at::tensor(ids, at::kLong).to(bucket.residual.device());
}

at::Tensor Rows(const at::Tensor& flat, const CscBucket& bucket) {
  return flat.view({bucket.norms.numel(), -1});
}

at::Tensor Finite(const at::Tensor& values) {
  return values.nan_to_num(0.0, 0.0, 0.0);
}

at::Tensor Norms(const at::Tensor& rows, float factor) {
  return rows.to(at::kFloat).abs().sum(1).mul_(factor);
}

// Splits bucket.packed into the chunks and the marks behind them.
std::vector<at::Tensor> Parts(const CscBucket& bucket) {
  const auto marks = static_cast<int64_t>(bucket.core->marks);
  return bucket.packed.split_with_sizes({bucket.packed.numel() - marks, marks});
}

}  // namespace

void PackTensor(CscBucket& bucket, const gf_csc_factors& factors,
                double scale) {
  const at::Tensor sent = Ids(bucket, true);
  const at::Tensor kept = Ids(bucket, false);
  const std::vector<at::Tensor> parts = Parts(bucket);
  bucket.residual.narrow(0, 0, bucket.buffer.numel()).add_(bucket.buffer);
  const at::Tensor rows = Rows(bucket.residual, bucket);
  bucket.norms = Norms(rows, factors.kept_norm);
  // Sums are rounded to the gradients' type on the way. The rounding error
  // stays in the residual.
  const at::Tensor sums = rows.index_select(0, sent);
  const at::Tensor rounded =
      sums.to(bucket.buffer.scalar_type()).to(at::kFloat);
  parts[0].copy_(rounded.flatten().narrow(0, 0, parts[0].numel()).mul(scale));
  parts[1].copy_(at::where(bucket.norms.index_select(0, kept).isfinite(), 0.0F,
                           std::numeric_limits<float>::quiet_NaN()));
  if (factors.keep_factor != 1.0F) rows.mul_(factors.keep_factor);
  rows.index_copy_(0, sent, sums.sub(rounded));
  rows.nan_to_num_(0.0, 0.0, 0.0);
}

void UnpackTensor(CscBucket& bucket, const gf_csc_factors& factors) {
  const at::Tensor sent = Ids(bucket, true);
  const std::vector<at::Tensor> parts = Parts(bucket);
  const at::Tensor marks = parts[1].to(bucket.buffer.scalar_type());
  const at::Tensor rows =
      Rows(at::empty(bucket.residual.sizes(), bucket.buffer.options()), bucket);
  bucket.means = at::zeros({sent.numel(), rows.size(1)}, rows.options());
  bucket.means.view(-1).narrow(0, 0, parts[0].numel()).copy_(parts[0]);
  rows.index_copy_(0, sent, bucket.means);
  rows.index_copy_(0, Ids(bucket, false),
                   marks.unsqueeze(1).expand({-1, rows.size(1)}));
  bucket.buffer.copy_(rows.view(-1).narrow(0, 0, bucket.buffer.numel()));
  const at::Tensor norms = Norms(bucket.means, factors.sent_norm);
  bucket.norms.index_copy_(0, sent, norms);
  bucket.bad = at::logical_or(norms.isfinite().all().logical_not(),
                              marks.isfinite().all().logical_not());
}

void SkipTensor(CscBucket& bucket, const gf_csc_factors& factors,
                const at::Tensor& bad) {
  const at::Tensor sent = Ids(bucket, true);
  const at::Tensor rows = Rows(bucket.residual, bucket);
  const at::Tensor back =
      Finite(bucket.means.to(at::kFloat).mul(factors.give_back));
  const at::Tensor residual = rows.index_select(0, sent);
  rows.index_copy_(0, sent, Finite(residual.add_(at::where(bad, back, 0.0F))));
}

}  // namespace gft
