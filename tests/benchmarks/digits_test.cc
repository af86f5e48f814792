#include "benchmarks/training/digits.h"

#include <algorithm>
#include <array>
#include <exception>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/benchmarks/temporary_file.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kClasses = 10;
constexpr char kData[] = "benchmarks/data/digits.csv";

std::string Header() {
  std::string line;
  for (int i = 0; i < 64; ++i) line += "p" + std::to_string(i) + ",";
  return line + "label\n";
}

std::string Image(const std::string& pixel, const std::string& label) {
  std::string line;
  for (int i = 0; i < 64; ++i) line += (i == 5 ? pixel : "0") + ",";
  return line + label + "\n";
}

std::string ErrorOfLoading(const std::string& path) {
  try {
    LoadDigits(path);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

std::string ErrorOf(const std::string& text) {
  const TemporaryFolder folder;
  return ErrorOfLoading(folder.Write("digits.csv", text));
}

TEST(Digits, ShippedFileHasEveryImageAndClass) {
  const Digits digits = LoadDigits(kData);
  EXPECT_EQ(digits.count(), 1797U);
  EXPECT_EQ(digits.pixels.size(), 1797U * kPixels);
  std::array<int, kClasses> counts{};
  for (const int label : digits.labels) {
    ++counts[static_cast<std::size_t>(label)];
  }
  EXPECT_EQ(counts, (std::array<int, kClasses>{178, 182, 177, 183, 181, 182,
                                               181, 179, 174, 180}));
  const auto [low, high] =
      std::minmax_element(digits.pixels.begin(), digits.pixels.end());
  EXPECT_EQ(*low, 0.0F);
  EXPECT_EQ(*high, 1.0F);
}

TEST(Digits, PixelsAreScaledToOne) {
  const TemporaryFolder folder;
  const Digits digits =
      LoadDigits(folder.Write("digits.csv", Header() + Image("4", "7")));
  EXPECT_EQ(digits.pixels[5], 0.25F);
  EXPECT_EQ(digits.labels, std::vector<int>{7});
}

TEST(Digits, DamagedTablesAreErrors) {
  EXPECT_NE(ErrorOf(Header() + Image("0", "1") + "1,2,3\n")
                .find("digits.csv: image 1 has 3 columns"),
            std::string::npos);
  for (const std::string& line :
       {Image("x", "1"), Image("", "1"), Image("1", "1,1")}) {
    EXPECT_NE(ErrorOf(Header() + line), "no error") << line;
  }
  EXPECT_NE(ErrorOf(Header()).find("expected images, got none"),
            std::string::npos);
}

TEST(Digits, MissingFileIsNamed) {
  EXPECT_EQ(ErrorOfLoading("no/such/file.csv"),
            "no/such/file.csv: expected images, got none");
}

TEST(SplitDigits, KeepsEverySampleOnceAndAFifthForTests) {
  Digits digits;
  for (int i = 0; i < 1797; ++i) {
    digits.pixels.insert(digits.pixels.end(), kPixels,
                         static_cast<float>(i) / 2048);
    digits.labels.push_back(i % 10);
  }
  const Split split = SplitDigits(digits, 4);
  EXPECT_EQ(split.test.count(), 359U);
  EXPECT_EQ(split.train.count(), 1438U);
  std::set<float> seen;
  for (const Digits* part : {&split.train, &split.test}) {
    for (std::size_t i = 0; i < part->count(); ++i) {
      const float pixel = part->pixels[i * kPixels];
      seen.insert(pixel);
      EXPECT_EQ(part->labels[i], static_cast<int>(pixel * 2048) % 10);
    }
  }
  EXPECT_EQ(seen.size(), 1797U);
  EXPECT_EQ(SplitDigits(digits, 4).test.pixels, split.test.pixels);
  EXPECT_NE(SplitDigits(digits, 5).test.pixels, split.test.pixels);
}

}  // namespace
}  // namespace gradientflow::benchmarks
