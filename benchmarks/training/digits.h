#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradientflow::benchmarks {

inline constexpr std::size_t kPixels = 64;
inline constexpr int kClasses = 10;

// 8x8 images of handwritten digits with their labels.
struct Digits {
  std::vector<float> pixels;  // count() * kPixels, 0 (white) to 1.
  std::vector<int> labels;    // 0 to 9.

  std::size_t count() const { return labels.size(); }
  // Adds image `i` of `from`.
  void Append(const Digits& from, std::size_t i);
};

// Reads benchmarks/data/digits.csv. Throws std::runtime_error, which names the
// first line that is not 64 pixels from 0 to 16 and a label from 0 to 9.
Digits LoadDigits(const std::string& path);

struct Split {
  Digits train;
  Digits test;
};
// A fixed random fifth of the samples is for testing, the rest for training.
Split SplitDigits(const Digits& digits, std::uint64_t seed);

}  // namespace gradientflow::benchmarks
