#pragma once

#include "benchmarks/scaling/model.h"
#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

struct MemoryUse {
  double pool_mb = 0;
  double beyond_mb = 0;  // Peak, of one rank, beyond its pool.
};

// Peak resident memory of a rank beyond its gradient pool, over some steps of
// `model` on two ranks joined by TCP (float32 pool), and beyond what the
// process had before it opened the session. MB = 1e6 bytes.
Result<MemoryUse> MeasureMemory(const Model& model, DType wire, float sparsity);

}  // namespace gradientflow::benchmarks
