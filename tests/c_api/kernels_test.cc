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

#include "gradientflow/csc/chunk_selector.h"
#include "integrations/c/gradientflow.h"
#include "tests/kernels/oracle.h"

// The kernels of the C API, against float64, and their sums and choices against
// what sessions work with.
namespace gradientflow::kernels::testing {
namespace {

using Flags = std::vector<std::uint8_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kUntouched = -77.0F;

int Number(DType type) { return static_cast<int>(type); }

std::size_t ChunksOf(std::size_t n, std::size_t chunk) {
  return n / chunk + (n % chunk != 0 ? 1 : 0);
}

// What a refused call must say.
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
  Flags RandomFlags(std::size_t n) {
    Flags flags(n);
    for (auto& flag : flags) {
      flag = random_() % 2 == 0 ? 0 : static_cast<std::uint8_t>(random_() | 1);
    }
    return flags;
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

// One call of gf_csc_residual(), and what there was before.
struct ResidualCase {
  DType type;
  std::size_t n;
  std::size_t chunk;
  bool zero_kept;
  float keep_factor;
};

void CheckResidual(const ResidualCase& c, Elements grads, Elements residual,
                   const Flags& selected) {
  const Elements grads_before = grads;
  const Elements residual_before = residual;
  const std::size_t chunks = ChunksOf(c.n, c.chunk);
  Elements norms(DType::kFloat32, chunks);
  const auto run = [&](Elements* g, Elements* r, void* norm) {
    return gf_csc_residual(g->data(), Number(c.type),
                           static_cast<float*>(r->data()), c.n, c.chunk,
                           selected.data(), c.zero_kept ? 2 : 0, c.keep_factor,
                           static_cast<float*>(norm));
  };
  ASSERT_EQ(run(&grads, &residual, norms.data()), GF_OK);
  std::vector<double> exact(chunks, 0.0);
  for (std::size_t i = 0; i < c.n; ++i) {
    const double before = grads_before.Get(i);
    const double sum =
        RoundTo(DType::kFloat32, before + residual_before.Get(i));
    exact[i / c.chunk] += std::fabs(sum);
    if (selected[i / c.chunk] != 0) {
      const double sent = RoundTo(c.type, sum);
      ASSERT_TRUE(Is(grads, i, sent));
      // What rounding took is kept, unless it made the sum infinite.
      ASSERT_TRUE(Is(residual, i, std::isfinite(sent) ? sum - sent : 0.0));
    } else {
      ASSERT_TRUE(Is(grads, i, c.zero_kept ? 0.0 : before));
      ASSERT_TRUE(Is(residual, i,
                     RoundTo(DType::kFloat32, sum * double{c.keep_factor})));
    }
  }
  for (std::size_t k = 0; k < chunks; ++k) {
    ASSERT_LE(FloatUlps(static_cast<float>(norms.Get(k)), exact[k]),
              NormUlpBound(std::min(c.chunk, c.n)));
  }
  ASSERT_TRUE(grads.CanariesIntact() && residual.CanariesIntact() &&
              norms.CanariesIntact());
  // Without norms, the same else.
  Elements grads_again = grads_before;
  Elements residual_again = residual_before;
  ASSERT_EQ(run(&grads_again, &residual_again, nullptr), GF_OK);
  ASSERT_TRUE(grads_again.SameBits(grads) && residual_again.SameBits(residual));
}

TEST_F(CKernels, ResidualIsAlgorithmOneChunkByChunk) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : kSizes) {
      for (const std::size_t chunk : {1, 7, 64, 250, 2000}) {
        for (const bool zero_kept : {false, true}) {
          CheckResidual({type, n, chunk, zero_kept, zero_kept ? 0.9F : 1.0F},
                        Random(type, n), Random(DType::kFloat32, n),
                        RandomFlags(ChunksOf(n, chunk)));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(CKernels, NormsAreOfTheSelectedChunksOnly) {
  for (const DType type : kGradientTypes) {
    for (const std::size_t n : kSizes) {
      for (const std::size_t chunk : {1, 9, 64, 3000}) {
        const Elements src = Random(type, n);
        const std::size_t chunks = ChunksOf(n, chunk);
        for (const Flags& selected : {Flags(), RandomFlags(chunks)}) {
          const bool all = selected.empty();
          Elements norms(DType::kFloat32, chunks);
          for (std::size_t c = 0; c < chunks; ++c) norms.Set(c, kUntouched);
          ASSERT_EQ(gf_csc_norms(src.data(), Number(type), n, chunk,
                                 all ? nullptr : selected.data(), 0.25F,
                                 static_cast<float*>(norms.data())),
                    GF_OK);
          for (std::size_t c = 0; c < chunks; ++c) {
            if (!all && selected[c] == 0) {
              ASSERT_EQ(norms.Get(c), kUntouched);
              continue;
            }
            double exact = 0;
            for (std::size_t i = c * chunk; i < std::min(n, (c + 1) * chunk);
                 ++i) {
              exact += std::fabs(src.Get(i));
            }
            ASSERT_LE(FloatUlps(static_cast<float>(norms.Get(c)), 0.25 * exact),
                      NormUlpBound(chunk));
          }
          ASSERT_TRUE(norms.CanariesIntact());
        }
      }
    }
  }
}

// A rank of a session and one without its pool must come to the same norms.
TEST_F(CKernels, SumsAreThoseOfASessionsKernels) {
  constexpr std::size_t kN = 70001;
  constexpr std::size_t kChunk = 32000;
  for (const DType type : kGradientTypes) {
    Elements grads = Random(type, kN);
    Elements residual = Random(DType::kFloat32, kN);
    Elements grads_too = grads;
    Elements residual_too = residual;
    const Flags selected = {0, 1, 0};
    float norms[3] = {kUntouched, kUntouched, kUntouched};
    float sums[3] = {kUntouched, kUntouched, kUntouched};
    ASSERT_EQ(gf_csc_norms(grads.data(), Number(type), kN, kChunk, nullptr,
                           0.5F, sums),
              GF_OK);
    ASSERT_EQ(gf_csc_residual(grads.data(), Number(type),
                              static_cast<float*>(residual.data()), kN, kChunk,
                              selected.data(), 1, 0.9F, norms),
              GF_OK);
    for (std::size_t c = 0; c < 3; ++c) {
      const std::size_t begin = c * kChunk;
      const std::size_t count = std::min(kChunk, kN - begin);
      auto* at =
          static_cast<std::byte*>(grads_too.data()) + begin * SizeOf(type);
      float sum = 0;
      float norm = 0;
      ASSERT_EQ(CpuKernels().l1_norm({at, type, count, 0.5F, &sum}, nullptr),
                0);
      ASSERT_EQ(CpuKernels().residual(
                    {at, type, static_cast<float*>(residual_too.data()) + begin,
                     count, selected[c] != 0, true, 0.9F, &norm},
                    nullptr),
                0);
      EXPECT_EQ(sums[c], sum);
      EXPECT_EQ(norms[c], norm);
    }
    EXPECT_TRUE(grads.SameBits(grads_too));
    EXPECT_TRUE(residual.SameBits(residual_too));
  }
}

// `keep` chunks as the selector of a session chooses them.
Flags SelectorsChoice(const std::vector<float>& norms, std::size_t keep) {
  const auto chunks = static_cast<double>(norms.size());
  auto made = ChunkSelector::Create(
      {.pool_elements = norms.size(),
       .chunk_elements = 1,
       .sparsity = 1.0 - static_cast<double>(keep) / chunks});
  EXPECT_TRUE(made.ok());
  EXPECT_TRUE(made.value().Select(1, norms).ok());
  EXPECT_EQ(made.value().selected_count(), keep);
  return made.value().selected();
}

TEST_F(CKernels, SelectChoosesAsASessionDoes) {
  const float special[] = {0.0F, -0.0F, 1.0F, 1.0F, kInf, kNan, -kInf, 3e38F};
  for (const std::size_t chunks : {1, 2, 3, 8, 97, 1906}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> norms(chunks);
      for (float& norm : norms) {
        norm = random_() % 3 == 0
                   ? special[random_() % std::size(special)]
                   : static_cast<float>(random_() % (round < 10 ? 5 : 100000));
      }
      const std::size_t keep = 1 + random_() % chunks;
      Flags selected(chunks + 1, 99);
      ASSERT_EQ(gf_csc_select(norms.data(), chunks, keep, selected.data()),
                GF_OK);
      EXPECT_EQ(selected.back(), 99);
      selected.pop_back();
      EXPECT_EQ(selected, SelectorsChoice(norms, keep)) << chunks;
    }
  }
}

TEST_F(CKernels, SelectRanksNonfiniteNormsHighestAndTiesByTheirId) {
  const float norms[] = {2, 5, kNan, 5, -kInf, 1, kInf};
  Flags selected(7, 99);
  ASSERT_EQ(gf_csc_select(norms, 7, 2, selected.data()), GF_OK);
  EXPECT_EQ(selected, (Flags{0, 0, 1, 0, 1, 0, 0}));
  ASSERT_EQ(gf_csc_select(norms, 7, 4, selected.data()), GF_OK);
  EXPECT_EQ(selected, (Flags{0, 1, 1, 0, 1, 0, 1}));
  ASSERT_EQ(gf_csc_select(norms, 7, 0, selected.data()), GF_OK);
  EXPECT_EQ(selected, Flags(7, 0));
  ASSERT_EQ(gf_csc_select(norms, 7, 7, selected.data()), GF_OK);
  EXPECT_EQ(selected, Flags(7, 1));
}

TEST_F(CKernels, NothingNeedsNoMemory) {
  EXPECT_EQ(gf_convert(nullptr, GF_FLOAT32, nullptr, GF_FLOAT16, 0, 1), GF_OK);
  EXPECT_EQ(gf_csc_residual(nullptr, GF_FLOAT16, nullptr, 0, 5, nullptr, 0, 1,
                            nullptr),
            GF_OK);
  EXPECT_EQ(gf_csc_norms(nullptr, GF_FLOAT32, 0, 5, nullptr, 1, nullptr),
            GF_OK);
  EXPECT_EQ(gf_csc_select(nullptr, 0, 0, nullptr), GF_OK);
}

TEST_F(CKernels, RefusalsSayWhatWasWrongAndTouchNothing) {
  float a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float b[8] = {};
  float norms[2] = {kUntouched, kUntouched};
  const std::uint8_t flags[2] = {1, 0};
  std::uint8_t selected[2] = {99, 99};
  for (const int bad : {-1, 3, 7, 8, 256}) {
    const std::string seen = "dtype " + std::to_string(bad);
    EXPECT_TRUE(
        Refused(gf_convert(a, bad, b, GF_FLOAT32, 8, 1), "src_" + seen));
    EXPECT_TRUE(
        Refused(gf_convert(a, GF_FLOAT32, b, bad, 8, 1), "dst_" + seen));
    EXPECT_TRUE(Refused(gf_csc_residual(b, bad, a, 8, 4, flags, 0, 1, norms),
                        "gf_csc_residual: " + seen));
    EXPECT_TRUE(Refused(gf_csc_norms(a, bad, 8, 4, flags, 1, norms),
                        "gf_csc_norms: " + seen));
  }
  constexpr int kF32 = GF_FLOAT32;
  EXPECT_TRUE(Refused(gf_convert(nullptr, kF32, b, kF32, 8, 1), "src is null"));
  EXPECT_TRUE(Refused(gf_convert(a, kF32, nullptr, kF32, 8, 1), "dst is null"));
  EXPECT_TRUE(Refused(gf_convert(a, kF32, a + 3, kF32, 4, 1), "overlap"));
  EXPECT_TRUE(Refused(gf_convert(a + 3, kF32, a, kF32, 4, 1), "overlap"));
  EXPECT_TRUE(Refused(gf_convert(a, kF32, a, GF_FLOAT16, 8, 1), "overlap"));
  const auto residual = [&](void* grads, float* with, std::size_t chunk,
                            const std::uint8_t* which) {
    return gf_csc_residual(grads, kF32, with, 8, chunk, which, 1, 0.5F, norms);
  };
  EXPECT_TRUE(Refused(residual(nullptr, b, 4, flags), "grads is null"));
  EXPECT_TRUE(Refused(residual(a, nullptr, 4, flags), "residual is null"));
  EXPECT_TRUE(Refused(residual(a, b, 4, nullptr), "selected is null"));
  EXPECT_TRUE(Refused(residual(a, b, 0, flags), "chunk_elements"));
  EXPECT_TRUE(Refused(residual(a, a, 4, flags), "overlap"));
  const auto norm = [&](const void* src, std::size_t chunk, float* out) {
    return gf_csc_norms(src, kF32, 8, chunk, nullptr, 1, out);
  };
  EXPECT_TRUE(Refused(norm(nullptr, 4, norms), "src is null"));
  EXPECT_TRUE(Refused(norm(a, 4, nullptr), "norms is null"));
  EXPECT_TRUE(Refused(norm(a, 0, norms), "chunk_elements"));
  EXPECT_TRUE(Refused(gf_csc_select(nullptr, 2, 1, selected), "norms is null"));
  EXPECT_TRUE(Refused(gf_csc_select(a, 2, 1, nullptr), "selected is null"));
  EXPECT_TRUE(Refused(gf_csc_select(a, 2, 3, selected), "keep"));
  EXPECT_TRUE(Refused(gf_csc_select(a, SIZE_MAX, 1, selected), "chunks"));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(a[i], static_cast<float>(i + 1));
    EXPECT_EQ(b[i], 0.0F);
  }
  EXPECT_EQ(norms[0], kUntouched);
  EXPECT_EQ(norms[1], kUntouched);
  EXPECT_EQ(selected[0], 99);
  EXPECT_EQ(selected[1], 99);
}

}  // namespace
}  // namespace gradientflow::kernels::testing
