#pragma once

#include "hook_csc_layout.h"

namespace gft {

// What gf_csc_pack(), gf_csc_unpack() and gf_csc_end_step() do, by torch's
// operators, for gradients on any device. Nothing waits for the device: whether
// a step is skipped (`bad`, a bool there) is computed with, not asked.
void PackTensor(CscBucket& bucket, const gf_csc_factors& factors, double scale);
void UnpackTensor(CscBucket& bucket, const gf_csc_factors& factors);
void SkipTensor(CscBucket& bucket, const gf_csc_factors& factors,
                const at::Tensor& bad);

}  // namespace gft
