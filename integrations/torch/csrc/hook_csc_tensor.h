#pragma once

#include "hook_csc_layout.h"

namespace gft {

// The work of gf_csc_pack(), gf_csc_unpack() and gf_csc_end_step() by torch's
// operators, for gradients on any device. Nothing waits for the device: whether
// a step is skipped is a bool on the device (`bad`), which enters the
// arithmetic.
void PackTensor(CscBucket& bucket, const gf_csc_factors& factors, double scale);
void UnpackTensor(CscBucket& bucket, const gf_csc_factors& factors);
void SkipTensor(CscBucket& bucket, const gf_csc_factors& factors,
                const at::Tensor& bad);

}  // namespace gft
