#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradientflow::benchmarks {

inline constexpr std::size_t kPixels = 64;

// 8x8 images of handwritten digits with their labels.
struct Digits {
  std::vector<float> pixels;  // count() * kPixels, 0 (white) to 1.
  std::vector<int> labels;    // 0 to 9.

  std::size_t count() const { return labels.size(); }
  // Adds image `i` of `from`.
  void Append(const Digits& from, std::size_t i);
};

// Reads benchmarks/data/digits.csv: 64 pixels from 0 to 16 and a label. Throws
// an exception if the file is not there or is no such table.
Digits LoadDigits(const std::string& path);

struct Split {
  Digits train;
  Digits test;
};
// A fixed random fifth of the samples is for testing, the rest for training.
Split SplitDigits(const Digits& digits, std::uint64_t seed);

}  // namespace gradientflow::benchmarks
