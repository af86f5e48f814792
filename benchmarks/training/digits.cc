#include "benchmarks/training/digits.h"

#include <fstream>
#include <sstream>

#include "benchmarks/random.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kMaxPixel = 16;

// Appends one line's image. Returns whether the line was valid.
bool AppendLine(const std::string& line, Digits& digits) {
  std::istringstream fields(line);
  for (std::size_t i = 0; i <= kPixels; ++i) {
    int value = -1;
    char comma = ',';
    if (!(fields >> value) || value < 0) return false;
    if (value > (i < kPixels ? kMaxPixel : kClasses - 1)) return false;
    if (i < kPixels && (!(fields >> comma) || comma != ',')) return false;
    if (i < kPixels) {
      digits.pixels.push_back(static_cast<float>(value) / kMaxPixel);
    } else {
      digits.labels.push_back(value);
    }
  }
  return fields.peek() == std::istringstream::traits_type::eof();
}

void Append(const Digits& from, std::size_t i, Digits& to) {
  const float* const image = from.pixels.data() + i * kPixels;
  to.pixels.insert(to.pixels.end(), image, image + kPixels);
  to.labels.push_back(from.labels[i]);
}

}  // namespace

Result<Digits> LoadDigits(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // The columns' names.
  Digits digits;
  for (int number = 2; std::getline(file, line); ++number) {
    if (AppendLine(line, digits)) continue;
    return Status(
        StatusCode::kInvalidArgument,
        StrCat(path, ":", number, ": expected ", kPixels, " pixels from 0 to ",
               kMaxPixel, " and a label from 0 to ", kClasses - 1));
  }
  if (digits.count() > 0) return digits;
  return Status(StatusCode::kInvalidArgument,
                StrCat(path, ": expected images, got none"));
}

Split SplitDigits(const Digits& digits, std::uint64_t seed) {
  const auto order = Random(seed).Permutation(digits.count());
  Split split;
  for (std::size_t i = 0; i < order.size(); ++i) {
    Append(digits, order[i], i < order.size() / 5 ? split.test : split.train);
  }
  return split;
}

}  // namespace gradientflow::benchmarks
