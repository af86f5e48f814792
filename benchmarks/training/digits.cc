#include "benchmarks/training/digits.h"

#include <fstream>
#include <stdexcept>

#include "benchmarks/lib/random.h"
#include "gradientflow/base/str_cat.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {

void Digits::Append(const Digits& from, std::size_t i) {
  const float* const image = from.pixels.data() + i * kPixels;
  pixels.insert(pixels.end(), image, image + kPixels);
  labels.push_back(from.labels[i]);
}

Digits LoadDigits(const std::string& path) {
  constexpr float kMostPixel = 16;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // The columns' names.
  Digits digits;
  while (std::getline(file, line)) {
    const std::vector<int> row = nlohmann::json::parse("[" + line + "]");
    if (row.size() != kPixels + 1) {
      throw std::runtime_error(StrCat(path, ": image ", digits.count(), " has ",
                                      row.size(), " columns"));
    }
    for (std::size_t i = 0; i < kPixels; ++i) {
      digits.pixels.push_back(static_cast<float>(row[i]) / kMostPixel);
    }
    digits.labels.push_back(row.back());
  }
  if (digits.count() > 0) return digits;
  throw std::runtime_error(path + ": expected images, got none");
}

Split SplitDigits(const Digits& digits, std::uint64_t seed) {
  const auto order = Random(seed).Permutation(digits.count());
  Split split;
  for (std::size_t i = 0; i < order.size(); ++i) {
    (i < order.size() / 5 ? split.test : split.train).Append(digits, order[i]);
  }
  return split;
}

}  // namespace gradientflow::benchmarks
