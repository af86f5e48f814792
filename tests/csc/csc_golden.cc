#include "tests/csc/csc_golden.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/csc/csc.h"
#include "gradientflow/optimizer/optimizer.h"
#include "kernels/kernels.h"

namespace gradientflow::testing {
namespace {

constexpr float kMomentum = 0.9F;
constexpr std::size_t kElements = 5;  // Chunks [0, 3) and [3, 5).
constexpr std::size_t kChunk = 3;
using Values = std::array<float, kElements>;

// One rank, whose exchange is the identity. With a residual apart it marks what
// is not finite in the chunks that it keeps back.
class Rank {
 public:
  Rank(CscMemory& memory, ResidualPlace place)
      : in_gradients_(place == ResidualPlace::kInGradients),
        memory_(memory),
        csc_({.selection = {.pool_elements = kElements,
                            .chunk_elements = kChunk,
                            .sparsity = 0.5},
              .keep_factor = kMomentum,
              .in_gradients = in_gradients_}),
        selector_(ChunkSelector::Create(csc_.config().selection).value()),
        grads_(Allocate(sizeof(Values))),
        residual_(Allocate(sizeof(Values))),
        packed_(Allocate(sizeof(Values))),
        slots_(Allocate(2 * sizeof(std::uint32_t))),
        norms_(Allocate(2 * sizeof(float))),
        marks_(Allocate(2 * sizeof(float))) {
    region_.memory = &memory;
    region_.elements = kElements;
    region_.grads = grads_.get();
    region_.residual = reinterpret_cast<float*>(residual_.get());
    region_.slots = reinterpret_cast<std::uint32_t*>(slots_.get());
    region_.norms = reinterpret_cast<float*>(norms_.get());
    if (!in_gradients_) region_.marks = marks_.get();
    if (memory.asynchronous()) region_.packed = packed_.get();
    if (in_gradients_) {
      region_.residual = nullptr;
      region_.dirty = dirty_;
    }
  }
  ~Rank() { EXPECT_TRUE(memory_.Synchronize().ok()); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Runs a step up to the exchange of the norms. Returns the gradients after
  // it.
  Values Exchange(const Values& gradients) {
    Copy(slots_.get(), selector_.slots().data(), 2 * sizeof(std::uint32_t));
    Values backward = gradients;
    if (in_gradients_) {
      EXPECT_TRUE(csc_.ZeroSent(region_).ok());
      const Values kept = Read(grads_);
      for (std::size_t i = 0; i < kElements; ++i) backward[i] += kept[i];
    }
    Copy(grads_.get(), backward.data(), sizeof(Values));
    EXPECT_TRUE(csc_.Pack(region_, 0, 1).ok());
    EXPECT_TRUE(csc_.Pack(region_, 1, 1).ok());
    EXPECT_TRUE(csc_.Unpack(region_, 0, 2).ok());
    Csc::NoteKept(region_, selected(), false);
    return Read(grads_);
  }
  void Skip() {
    Csc::NoteKept(region_, selected(), true);
    EXPECT_TRUE(csc_.Skip(region_).ok());
  }
  void Select(std::uint64_t step) {
    EXPECT_TRUE(selector_.Select(step, norms()).ok());
  }

  const std::vector<std::uint8_t>& selected() const {
    return selector_.selected();
  }
  Values residual() {
    if (!in_gradients_) return Read(residual_);
    Values values;
    EXPECT_TRUE(csc_.ReadKept(region_, values.data()).ok());
    return values;
  }
  std::vector<float> norms() {
    std::vector<float> norms(2);
    Copy(norms.data(), norms_.get(), 2 * sizeof(float));
    return norms;
  }

 private:
  DeviceMemory Allocate(std::size_t bytes) {
    return memory_.Allocate(bytes).value();
  }
  void Copy(void* dst, const void* src, std::size_t bytes) {
    EXPECT_TRUE(memory_.Copy(dst, src, bytes).ok());
    EXPECT_TRUE(memory_.Synchronize().ok());
  }
  Values Read(const DeviceMemory& memory) {
    Values values;
    Copy(values.data(), memory.get(), sizeof(values));
    return values;
  }

  const bool in_gradients_;
  std::uint8_t dirty_[2] = {};
  CscMemory& memory_;
  const Csc csc_;
  ChunkSelector selector_;
  const DeviceMemory grads_;
  const DeviceMemory residual_;
  const DeviceMemory packed_;
  const DeviceMemory slots_;
  const DeviceMemory norms_;
  const DeviceMemory marks_;
  CscRegion region_;
};

}  // namespace

void ExpectGoldenSteps(CscMemory& memory, ResidualPlace place) {
  const bool important[] = {false, false, true, false, true};
  const double hg[] = {.9, 1.71, 0, .9, 0};
  const double norm[] = {1, 1.9, 2.71, 1, 1.9};  // Per element.
  const double hu[] = {0, 0, .271, .271, .4339};
  const double w[] = {0, 0, -.271, -.271, -.7049};
  // The other chunk has the larger norm, except in the steps before those.
  const float other[] = {9, .5F, 5, -4, 0};
  const PoolLayout layout = PoolLayout::Create({kElements}).value();
  Optimizer optimizer(layout, kernels::CpuKernels());
  Values weights = {};
  Rank rank(memory, place);
  (void)rank.Exchange({0, 0, 0, 9, 9});  // Sends all; leaves no residual.
  rank.Select(1);
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(::testing::Message()
                 << memory.description() << " step " << step + 1);
    ASSERT_EQ(rank.selected()[0] != 0, important[step]);
    ASSERT_NE(rank.selected()[0], rank.selected()[1]);
    const float loud = other[step];
    const Values grads = rank.Exchange({1, 1, 1, loud, loud});
    std::vector<Extent> sent = {{3, 2}};
    if (important[step]) sent = {{0, 3}};
    ASSERT_TRUE(optimizer
                    .Update({.lr = 0.1F, .momentum = kMomentum},
                            {grads.data(), DType::kFloat32, sent},
                            std::vector<float*>{weights.data()})
                    .ok());
    for (std::size_t i = 0; i < kChunk; ++i) {
      if (important[step]) {
        EXPECT_NEAR(grads[i], norm[step], 1e-6);
      }
      EXPECT_NEAR(rank.residual()[i], hg[step], 1e-6);
      EXPECT_NEAR(optimizer.momentum()[i], hu[step], 1e-6);
      EXPECT_NEAR(weights[i], w[step], 1e-6);
    }
    EXPECT_NEAR(rank.norms()[0], 3 * norm[step], 1e-5);
    rank.Select(static_cast<std::uint64_t>(step) + 2);
  }
}

void ExpectSkippedStep(CscMemory& memory, ResidualPlace place) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Rank rank(memory, place);
  (void)rank.Exchange({1, 2, 3, 9, 9});
  rank.Select(1);  // The second chunk.
  const Values seen_by_all = rank.Exchange({1, kInf, 3, 5, -7});
  for (std::size_t i = 0; i < kElements; ++i) {
    if (i < kChunk && place == ResidualPlace::kApart) {
      EXPECT_TRUE(std::isnan(seen_by_all[i])) << "marked";
    } else if (i >= kChunk) {
      EXPECT_EQ(seen_by_all[i], i == 3 ? 5 : -7) << "sent";
    }
  }
  EXPECT_FALSE(std::isfinite(rank.norms()[0]));
  rank.Skip();
  const Values kept = rank.residual();
  const Values expected = {.9F, 0, 3 * .9F, 5, -7};
  for (std::size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(kept[i], expected[i], 1e-6) << memory.description() << i;
  }
  rank.Select(2);
  EXPECT_EQ(rank.selected()[0], 1) << "a norm that is not finite goes first";
  (void)rank.Exchange({1, 2, kInf, 1, 1});
  rank.Skip();
  const Values again = {1.9F, 2, 0, 5.4F, -5.4F};
  const Values seen = rank.residual();
  for (std::size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(seen[i], again[i], 1e-6) << memory.description() << i;
  }
}

}  // namespace gradientflow::testing
