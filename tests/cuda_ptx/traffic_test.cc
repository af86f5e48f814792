#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"
#include "tests/cuda_ptx/library.h"
#include "tests/cuda_ptx/machine.h"
#include "tests/kernels/chunk_oracle.h"
#include "tests/kernels/oracle.h"

// How many bytes of the device's memory the kernels of a step move for each
// element of a float32 pool with a 16-bit wire. design.md has these numbers.
namespace gradientflow::kernels::testing {
namespace {

using cuda_ptx::Library;
using cuda_ptx::Machine;

constexpr std::size_t kChunk = 32768;
constexpr std::size_t kChunks = 8;
constexpr std::size_t kElements = kChunk * kChunks;
// Slots, norms and partial sums, for each element.
constexpr double kPerChunk = 0.05;

// Expects that `launch` moves `wanted` bytes for each element, on every
// architecture; these take turns.
template <typename Launch>
void ExpectBytes(double wanted, Launch launch) {
  for (const auto& program : Library::Get().programs()) {
    const std::uint64_t before = Machine::Get().moved_bytes();
    ASSERT_EQ(launch(), 0);
    const double bytes =
        static_cast<double>(Machine::Get().moved_bytes() - before) / kElements;
    EXPECT_GE(bytes, wanted) << program.name();
    EXPECT_LE(bytes, wanted + kPerChunk) << program.name();
  }
}

class ChunkTraffic : public EveryChunkTable {
 protected:
  ChunkTraffic() { std::fill_n(norms_.data(), kChunks, 0.0F); }
  void SendAll(bool all) {
    for (std::size_t c = 0; c < kChunks; ++c) {
      slots_[c] = all ? static_cast<std::uint32_t>(c) : kNotSent;
    }
  }
  int RunResidual(float* residual, float keep_factor) {
    return Launch(&ChunkKernelTable::chunk_residual,
                  {.range = range_,
                   .slots = slots_.data(),
                   .grads = pool_.data(),
                   .type = DType::kFloat32,
                   .residual = residual,
                   .packed = packed_.data(),
                   .packed_type = DType::kFloat16,
                   .first_slot = 0,
                   .scale = 0.5F,
                   .zero_kept = false,
                   .keep_factor = keep_factor,
                   .norm_scale = 1,
                   .norms = norms_.data()});
  }
  int RunUnpack() {
    return Launch(&ChunkKernelTable::chunk_unpack,
                  {.range = range_,
                   .slots = slots_.data(),
                   .grads = pool_.data(),
                   .type = DType::kFloat32,
                   .packed = packed_.data(),
                   .packed_type = DType::kFloat16,
                   .first_slot = 0,
                   .norm_scale = 1,
                   .norms = norms_.data(),
                   .nonfinite = found_.get()});
  }

  const ChunkRange range_ = {kElements, kChunk, 0, kChunks};
  Slots slots_{kChunks};
  Records<float> pool_{kElements, 1.0F};
  Records<float> residual_{kElements, 0.5F};
  Elements packed_{DType::kFloat16, kElements};
  Records<float> norms_{kChunks};
  Scalar<std::uint32_t> found_{0};
};

TEST_P(ChunkTraffic, OfAKeptElementIs12Bytes) {
  SendAll(false);
  ExpectBytes(12, [&] { return RunResidual(residual_.data(), 0.9F); });
  ExpectBytes(0, [&] { return RunUnpack(); });
}

TEST_P(ChunkTraffic, OfASentElementIs14BytesBeforeTheWireAnd6AfterIt) {
  SendAll(true);
  ExpectBytes(14, [&] { return RunResidual(residual_.data(), 0.9F); });
  ExpectBytes(6, [&] { return RunUnpack(); });
}

TEST_P(ChunkTraffic, IsLessIfBackwardAddsToThePool) {
  SendAll(false);
  ExpectBytes(8, [&] { return RunResidual(nullptr, 0.9F); });
  ExpectBytes(4, [&] { return RunResidual(nullptr, 1.0F); });
  SendAll(true);
  ExpectBytes(6, [&] { return RunResidual(nullptr, 0.9F); });
}

GRADIENTFLOW_FOR_EVERY_CHUNK_TABLE(ChunkTraffic);

class Traffic : public EveryTable {
 protected:
  Scalar<std::uint32_t> found_{0};
};

// The pass before the wire, and that after it, which also looks for infinities.
TEST_P(Traffic, OfADensePoolIsTwoPasses) {
  Records<float> pool(kElements, 1.0F);
  Elements wire(DType::kFloat16, kElements);
  ExpectBytes(6, [&] {
    return kernels().convert({pool.data(), DType::kFloat32, wire.data(),
                              DType::kFloat16, nullptr, kElements, 1, nullptr},
                             nullptr);
  });
  ExpectBytes(6, [&] {
    return kernels().convert(
        {wire.data(), DType::kFloat16, pool.data(), DType::kFloat32, nullptr,
         kElements, 0.5F, found_.get()},
        nullptr);
  });
}

// Where NCCL adds up a 16-bit pool, the only pass reads it; where we do, the
// kernel that adds up has no further one.
TEST_P(Traffic, OfA16BitPoolIsOnePass) {
  constexpr int kRanks = 3;
  Elements pool(DType::kBFloat16, kElements);
  pool.Fill(random_);
  ExpectBytes(2, [&] {
    return kernels().find_nonfinite(
        {pool.data(), DType::kBFloat16, kElements, found_.get()}, nullptr);
  });
  Elements others(DType::kBFloat16, kElements);
  const void* sources[kRanks] = {pool.data(), others.data(), others.data()};
  void* destination = pool.data();
  ExpectBytes(2 * (kRanks + 1), [&] {
    return kernels().reduce_many({.srcs = sources,
                                  .sources = kRanks,
                                  .own = -1,
                                  .src_type = DType::kBFloat16,
                                  .dsts = &destination,
                                  .dests = 1,
                                  .dst_type = DType::kBFloat16,
                                  .round_type = DType::kBFloat16,
                                  .n = kElements,
                                  .op = ReduceOp::kSum,
                                  .scale = 1.0F / kRanks,
                                  .nonfinite = found_.get()},
                                 nullptr);
  });
}

GRADIENTFLOW_FOR_EVERY_TABLE(Traffic);

}  // namespace
}  // namespace gradientflow::kernels::testing
