#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/dtype.h"

namespace gradientflow::benchmarks {

inline constexpr int kMostRanks = 16;  // Whose results are exact.

// Data whose reduction over the ranks is exact in every dtype, whatever the
// order: small integers, repeated with a prime period so that an element in
// the wrong place shows.
class Pattern {
 public:
  // REQUIRES 1 <= ranks <= kMostRanks.
  Pattern(DType dtype, ReduceOp op, int ranks);

  // Rank `rank`'s input: `count` elements at `data`.
  void Fill(int rank, std::size_t count, void* data) const;
  // Elements that are not what the reduction of all ranks' inputs is, exactly;
  // means of float32 and float64: to a unit in the last place of a float32.
  std::uint64_t CountWrong(std::size_t count, const void* data) const;

 private:
  double Value(int rank, std::size_t i) const;
  double Expected(std::size_t i) const;
  bool Differs(const std::byte* seen, const std::byte* expected) const;
  std::vector<std::byte> Period(const std::vector<double>& values) const;

  const DType dtype_;
  const ReduceOp op_;
  const int ranks_;
};

}  // namespace gradientflow::benchmarks
