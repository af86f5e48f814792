#pragma once

#include "hook_csc_layout.h"

namespace gft {

// What CSC does with one bucket's memory. Both ways give the same gradients
// and residuals; norms may differ in the last bits.
class CscOps {
 public:
  CscOps() = default;
  virtual ~CscOps() = default;
  CscOps(const CscOps&) = delete;
  CscOps& operator=(const CscOps&) = delete;

  // Before the wire: adds the residual to bucket.buffer, makes bucket.packed of
  // the selected chunks, multiplied by `scale`, in type `wire`, and keeps the
  // others back (with their norms in bucket.norms). A chunk kept back that
  // holds an inf or NaN travels as a NaN in its mark, so that all ranks learn
  // of it in this step, and leaves nothing non-finite in the residual.
  virtual void Pack(CscBucket& bucket, at::ScalarType wire,
                    double scale) const = 0;
  // After it: bucket.buffer becomes what bucket.packed holds in selected
  // chunks, else 0, or NaN where a rank had marked the chunk. Norms of selected
  // chunks, and bucket.bad, are set.
  virtual void Unpack(CscBucket& bucket) const = 0;
  // If `bad`, the step will be skipped: what was sent, and is finite, goes back
  // to the residual, an equal part on each rank, so that it is sent again.
  virtual void TakeBack(CscBucket& bucket, const at::Tensor& bad) const = 0;

  // The library's kernels: memory of the host.
  static const CscOps& OnHost();
  // Torch's operators: any device.
  static const CscOps& OfTensors();
};

// Elements of bucket.packed.
int64_t PackedElements(const CscBucket& bucket);
// Makes bucket.packed of that size, if possible where it was.
void PreparePacked(CscBucket& bucket, at::ScalarType wire);

}  // namespace gft
