#include "benchmarks/training/digits.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "benchmarks/lib/random.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kMaxPixel = 16;

// Appends one line's image. Returns whether the line was valid.
bool AppendLine(const std::string& line, Digits& digits) {
  std::istringstream fields(line);
  char comma = ',';
  for (std::size_t i = 0; i < kPixels; ++i) {
    int value = -1;
    if (!(fields >> value >> comma) || comma != ',') return false;
    if (value < 0 || value > kMaxPixel) return false;
    digits.pixels.push_back(static_cast<float>(value) / kMaxPixel);
  }
  int label = -1;
  if (!(fields >> label) || label < 0 || label >= kClasses) return false;
  digits.labels.push_back(label);
  return fields.peek() == std::istringstream::traits_type::eof();
}

}  // namespace

void Digits::Append(const Digits& from, std::size_t i) {
  const float* const image = from.pixels.data() + i * kPixels;
  pixels.insert(pixels.end(), image, image + kPixels);
  labels.push_back(from.labels[i]);
}

Digits LoadDigits(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // The columns' names.
  Digits digits;
  for (int number = 2; std::getline(file, line); ++number) {
    if (AppendLine(line, digits)) continue;
    throw std::runtime_error(StrCat(path, ":", number, ": expected ", kPixels,
                                    " pixels from 0 to ", kMaxPixel,
                                    " and a label from 0 to ", kClasses - 1));
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
