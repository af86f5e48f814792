#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>

#include "tests/cuda_shim/cuda_shim.h"
#include "tests/cuda_shim/include/cuda_runtime.h"
#include "tests/cuda_shim/on_grid.h"

namespace gradientflow::cuda_shim {
namespace {

constexpr unsigned kThreads = 64;
constexpr unsigned kAll = ~0U;

enum class How { kXor, kUp, kDown, kFrom };

template <typename T>
__global__ void Shuffled(How how, int by, const T* in, T* out) {
  const T mine = in[threadIdx.x];
  T other = mine;
  if (how == How::kXor) other = __shfl_xor_sync(kAll, mine, by);
  if (how == How::kUp) {
    other = __shfl_up_sync(kAll, mine, static_cast<unsigned>(by));
  }
  if (how == How::kDown) {
    other = __shfl_down_sync(kAll, mine, static_cast<unsigned>(by));
  }
  if (how == How::kFrom) other = __shfl_sync(kAll, mine, by);
  out[threadIdx.x] = other;
}

int Source(How how, int by, int lane) {
  switch (how) {
    case How::kXor:
      return lane ^ by;
    case How::kUp:
      return lane - by < 0 ? lane : lane - by;
    case How::kDown:
      return lane + by > 31 ? lane : lane + by;
    case How::kFrom:
      return by % 32;
  }
  return lane;
}

template <typename T>
void ExpectShuffles() {
  std::mt19937_64 random(7);
  Managed<T> in(kThreads);
  Managed<T> out(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) in[i] = static_cast<T>(random());
  for (const How how : {How::kXor, How::kUp, How::kDown, How::kFrom}) {
    for (int by = 0; by < 32; ++by) {
      ASSERT_EQ(
          OnGrid(Shuffled<T>, 2, kThreads, 0, how, by, in.data(), out.data()),
          cudaSuccess);
      for (int t = 0; t < static_cast<int>(kThreads); ++t) {
        const int source = t / 32 * 32 + Source(how, by, t % 32);
        ASSERT_EQ(out[static_cast<std::size_t>(t)],
                  in[static_cast<std::size_t>(source)])
            << static_cast<int>(how) << " by " << by << ", thread " << t;
      }
    }
  }
}

TEST(Warps, ShuffleValuesOfAnySizeWithinTheirLanes) {
  ExpectShuffles<float>();
  ExpectShuffles<double>();
  ExpectShuffles<unsigned>();
  ExpectShuffles<std::uint64_t>();
  ExpectShuffles<short>();
}

__global__ void Votes(unsigned seed, unsigned* out) {
  const bool vote = (seed >> (threadIdx.x % 32) & 1U) != 0;
  const unsigned ballot = __ballot_sync(kAll, vote ? 0x100 : 0);
  const int any = __any_sync(kAll, static_cast<int>(vote));
  const int all = __all_sync(kAll, static_cast<int>(vote));
  out[3 * threadIdx.x] = ballot;
  out[3 * threadIdx.x + 1] = static_cast<unsigned>(any);
  out[3 * threadIdx.x + 2] = static_cast<unsigned>(all);
}

TEST(Warps, CountVotesInEveryLane) {
  std::mt19937_64 random(8);
  for (const unsigned votes :
       {0U, ~0U, 1U, 1U << 31, static_cast<unsigned>(random())}) {
    Managed<unsigned> out(3 * std::size_t{kThreads});
    ASSERT_EQ(OnGrid(Votes, 1, kThreads, 0, votes, out.data()), cudaSuccess);
    for (std::size_t t = 0; t < kThreads; ++t) {
      ASSERT_EQ(out[3 * t], votes);
      ASSERT_EQ(out[3 * t + 1], votes != 0 ? 1U : 0U);
      ASSERT_EQ(out[3 * t + 2], votes == ~0U ? 1U : 0U);
    }
  }
}

// Lane `absent` takes another branch; the other lanes expect all lanes.
__global__ void Absent(unsigned absent, bool ends) {
  if (threadIdx.x % 32 == absent) {
    if (ends) return;
    __any_sync(kAll, 1);
    return;
  }
  __ballot_sync(kAll, 1);
}
__global__ void Masked(unsigned mask) { __ballot_sync(mask, 1); }

TEST(Warps, AbortWhenALaneIsMissing) {
  EXPECT_DEATH(OnGrid(Absent, 1, 64, 0, 3U, true),
               "threads 2 to 2|threads 0 to 2 are in __ballot_sync at "
               ".*warp_test.cc(.|\n)*threads 3 to 3 have ended");
  EXPECT_DEATH(OnGrid(Absent, 1, 64, 0, 3U, false),
               "wait for each other in different places");
  EXPECT_DEATH(OnGrid(Masked, 1, 48, 0, kAll), "expected 32 lanes, .* has 16");
  EXPECT_DEATH(OnGrid(Masked, 1, 64, 0, 0xFFFFU),
               "expected the mask of all lanes, seen 0xffff");
}

enum class Op { kAdd, kOr, kMax, kExch };
__global__ void Atomics(Op op, unsigned* cell, unsigned* old) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (op == Op::kAdd) old[i] = atomicAdd(cell, 3U);
  if (op == Op::kOr) old[i] = atomicOr(cell, 1U << (i % 32));
  if (op == Op::kMax) old[i] = atomicMax(cell, i);
  if (op == Op::kExch) old[i] = atomicExch(cell, i + 1);
}

TEST(Atomics, ChangeACellOnceForEachThreadAndReturnWhatWas) {
  constexpr unsigned kN = 300;
  const auto run = [](Op op, Managed<unsigned>& cell, Managed<unsigned>& old) {
    ASSERT_EQ(OnGrid(Atomics, 3, 100, 0, op, cell.data(), old.data()),
              cudaSuccess);
  };
  for (int i = 0; i < 5; ++i) {
    Managed<unsigned> cells[4] = {Managed<unsigned>(1), Managed<unsigned>(1),
                                  Managed<unsigned>(1), Managed<unsigned>(1)};
    Managed<unsigned> old(kN);
    run(Op::kAdd, cells[0], old);
    EXPECT_EQ(cells[0][0], 3 * kN);
    std::set<unsigned> seen(old.data(), old.data() + kN);
    EXPECT_EQ(seen.size(), kN);
    EXPECT_EQ(*seen.rbegin(), 3 * (kN - 1));
    run(Op::kOr, cells[1], old);
    EXPECT_EQ(cells[1][0], ~0U);
    run(Op::kMax, cells[2], old);
    EXPECT_EQ(cells[2][0], kN - 1);
    run(Op::kExch, cells[3], old);
    seen = {old.data(), old.data() + kN};
    seen.insert(cells[3][0]);
    EXPECT_EQ(seen.size(), kN + 1);  // 0 and each thread's number.
  }
}

__global__ void LoadStore(const unsigned char* in, unsigned char* out) {
  __stcs(reinterpret_cast<uint4*>(out),
         __ldcs(reinterpret_cast<const uint4*>(in)));
}
__global__ void AddTo(unsigned char* cell) {
  atomicAdd(reinterpret_cast<unsigned*>(cell), 1U);
}

TEST(Accesses, AbortUnlessAlignedToTheirSize) {
  Managed<unsigned char> in(64);
  Managed<unsigned char> out(64);
  for (std::size_t i = 0; i < 64; ++i) in[i] = static_cast<unsigned char>(i);
  ASSERT_EQ(OnGrid(LoadStore, 1, 1, 0, in.data() + 16, out.data()),
            cudaSuccess);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(out[i], 16 + i);
  EXPECT_EQ(out[16], 0);
  for (const std::size_t off : {1U, 4U, 8U}) {
    EXPECT_DEATH(OnGrid(LoadStore, 1, 1, 0, in.data() + off, out.data()),
                 "__ldcs: expected a multiple of 16");
    EXPECT_DEATH(OnGrid(LoadStore, 1, 1, 0, in.data(), out.data() + off),
                 "block 0, thread 0, __stcs: expected a multiple of 16");
  }
  EXPECT_DEATH(OnGrid(AddTo, 1, 1, 0, in.data() + 2), "multiple of 4");
}

TEST(Bits, AreCountedAsAGpuDoes) {
  EXPECT_EQ(__popc(0), 0);
  EXPECT_EQ(__popc(0xF00F0001U), 9);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clz(-1), 0);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(0x50), 5);
  EXPECT_EQ(__float_as_uint(-2.0F), 0xC0000000U);
  EXPECT_EQ(__uint_as_float(0x3FC00000U), 1.5F);
}

}  // namespace
}  // namespace gradientflow::cuda_shim
