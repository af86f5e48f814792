#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "integrations/c/gradientflow.h"
#include "tests/kernels/oracle.h"

// The kernels of the C API, compared with float64.
namespace gradientflow::kernels::testing {
namespace {

int Number(DType type) { return static_cast<int>(type); }

// The message that a refused call must have.
::testing::AssertionResult Refused(gf_status status, const std::string& what) {
  const std::string text = gf_last_error();
  if (status == GF_INVALID_ARGUMENT && text.find(what) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << gf_status_name(status) << ", \"" << text << "\", expected \""
         << what << "\"";
}

class CKernels : public ::testing::Test {
 protected:
  Elements Random(DType type, std::size_t n) {
    Elements elements(type, n, random_() % 5);
    elements.Fill(random_);
    return elements;
  }
  std::mt19937_64 random_{20190215};
};

TEST_F(CKernels, ConvertScalesAndRoundsOncePerStep) {
  for (const DType from : kGradientTypes) {
    for (const DType to : kGradientTypes) {
      for (const float scale : {1.0F, 0.3F, -4096.0F}) {
        for (const std::size_t n : kSizes) {
          const Elements src = Random(from, n);
          Elements dst = Random(to, n);
          ASSERT_EQ(gf_convert(src.data(), Number(from), dst.data(), Number(to),
                               n, scale),
                    GF_OK);
          for (std::size_t i = 0; i < n; ++i) {
            const double scaled =
                RoundTo(DType::kFloat32, src.Get(i) * double{scale});
            ASSERT_TRUE(Is(dst, i, RoundTo(to, scaled)));
          }
          ASSERT_TRUE(dst.CanariesIntact());
        }
      }
    }
  }
}

TEST_F(CKernels, ConvertMayWorkInPlaceOnOneType) {
  for (const DType type : kGradientTypes) {
    for (const float scale : {1.0F, 0.3F}) {
      const Elements before = Random(type, 333);
      Elements after = before;
      ASSERT_EQ(gf_convert(after.data(), Number(type), after.data(),
                           Number(type), 333, scale),
                GF_OK);
      for (std::size_t i = 0; i < 333; ++i) {
        const double scaled =
            RoundTo(DType::kFloat32, before.Get(i) * double{scale});
        ASSERT_TRUE(Is(after, i, RoundTo(type, scaled)));
      }
    }
  }
}

TEST_F(CKernels, NothingNeedsNoMemory) {
  EXPECT_EQ(gf_convert(nullptr, GF_FLOAT32, nullptr, GF_FLOAT16, 0, 1), GF_OK);
}

TEST_F(CKernels, RefusalsSayWhatWasWrongAndTouchNothing) {
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float b[8] = {};
  for (const int bad : {-1, 3, 7, 8, 256}) {
    const std::string seen = "dtype " + std::to_string(bad);
    EXPECT_TRUE(
        Refused(gf_convert(a, bad, b, GF_FLOAT32, 8, 1), "src_" + seen));
    EXPECT_TRUE(
        Refused(gf_convert(a, GF_FLOAT32, b, bad, 8, 1), "dst_" + seen));
  }
  constexpr int kF32 = GF_FLOAT32;
  EXPECT_TRUE(Refused(gf_convert(nullptr, kF32, b, kF32, 8, 1), "src is null"));
  EXPECT_TRUE(Refused(gf_convert(a, kF32, nullptr, kF32, 8, 1), "dst is null"));
  EXPECT_TRUE(Refused(gf_convert(a, kF32, a + 3, kF32, 4, 1), "overlap"));
  EXPECT_TRUE(Refused(gf_convert(a + 3, kF32, a, kF32, 4, 1), "overlap"));
  EXPECT_TRUE(Refused(gf_convert(a, kF32, a, GF_FLOAT16, 8, 1), "overlap"));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(a[i], static_cast<float>(i + 1));
    EXPECT_EQ(b[i], 0.0F);
  }
}

}  // namespace
}  // namespace gradientflow::kernels::testing
