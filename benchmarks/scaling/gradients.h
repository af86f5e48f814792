#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/dtype.h"

namespace gradientflow::benchmarks {

// Random gradients at the speed of a copy: every rank and step reads one table
// of normal numbers from another offset. Values are exact in float16, so that
// the oracle need not know how a pool rounds.
class Gradients {
 public:
  // `dtype`: kFloat32 or kFloat16.
  explicit Gradients(DType dtype);

  // The gradient of pool element `element` on rank `rank` in `step`.
  float Value(int rank, std::uint64_t step, std::size_t element) const;

  // Writes the whole pool of `rank` for `step`, or adds to it. REQUIRES: `pool`
  // has the dtype given to the constructor.
  void Fill(int rank, std::uint64_t step, BufferView pool,
            bool add = false) const;

 private:
  static std::size_t Shift(int rank, std::uint64_t step);

  DType dtype_;
  std::size_t element_bytes_;
  std::vector<float> values_;
  std::vector<std::byte> table_;  // values_ in dtype.
};

// An element of a pool as float32.
float ElementAt(ConstBufferView pool, DType dtype, std::size_t element);

}  // namespace gradientflow::benchmarks
