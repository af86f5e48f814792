#include "benchmarks/training/digits.h"

#include "benchmarks/csv.h"
#include "benchmarks/random.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kMaxPixel = 16;

void Append(const Digits& from, std::size_t i, Digits& to) {
  const float* const image = from.pixels.data() + i * kPixels;
  to.pixels.insert(to.pixels.end(), image, image + kPixels);
  to.labels.push_back(from.labels[i]);
}

}  // namespace

Result<Digits> LoadDigits(const std::string& path) {
  std::vector<std::string> columns;
  for (std::size_t i = 0; i < kPixels; ++i) columns.push_back(StrCat("p", i));
  columns.emplace_back("label");
  const Result<Csv> csv = ReadCsv(path, columns);
  if (!csv.ok()) return csv.status();
  Digits digits;
  for (std::size_t row = 0; row < csv.value().rows.size(); ++row) {
    for (std::size_t i = 0; i < kPixels; ++i) {
      const auto pixel = NumberAt(csv.value(), row, i, 0, kMaxPixel);
      if (!pixel.ok()) return pixel.status();
      digits.pixels.push_back(static_cast<float>(pixel.value()) / kMaxPixel);
    }
    const auto label = NumberAt(csv.value(), row, kPixels, 0, kClasses - 1);
    if (!label.ok()) return label.status();
    digits.labels.push_back(label.value());
  }
  return digits;
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
