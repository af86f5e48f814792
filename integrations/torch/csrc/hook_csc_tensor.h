#pragma once

#include "hook_csc_layout.h"

namespace gft {

// gf_csc_pack() and its like, by torch's operators: for gradients of any
// device. The device is not waited for.
void PackTensor(CscBucket& bucket, const gf_csc_factors& factors, double scale);
void UnpackTensor(CscBucket& bucket, const gf_csc_factors& factors);
// `bad`: a bool on the device, whether the step is skipped.
void SkipTensor(CscBucket& bucket, const gf_csc_factors& factors,
                const at::Tensor& bad);

}  // namespace gft
