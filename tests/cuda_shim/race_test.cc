#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "tests/cuda_shim/cuda_shim.h"
#include "tests/cuda_shim/include/cuda_runtime.h"
#include "tests/cuda_shim/on_grid.h"
#include "tests/cuda_shim/sanitizers.h"

// Mistakes with shared memory and barriers, which the shim detects. Each kernel
// here has a switch for its mistake.
namespace gradientflow::cuda_shim {
namespace {

constexpr unsigned kThreads = 96;
// The launches of a kernel with a mistake: as many as a test would make.
constexpr int kFewLaunches = 8;

template <typename T>
T* Shared() {
  return reinterpret_cast<T*>(kernels::cuda::gf_shared_memory);
}

// Runs `kernel` often, each time with `result` set to 0 before; returns how
// often result[0] != expected after. Under the thread sanitizer a race ends the
// process instead.
template <typename Kernel>
int WrongResults(Kernel kernel, std::size_t shared_bytes, float expected) {
  SetSeed(1);
  int wrong = 0;
  for (int i = 0; i < kFewLaunches; ++i) {
    Managed<float> result(1);
    EXPECT_EQ(OnGrid(kernel, 1, kThreads, shared_bytes, result.data()),
              cudaSuccess);
    if (!(result[0] == expected)) ++wrong;
  }
  return wrong;
}

// Under the thread sanitizer `run` must end with its report; otherwise it must
// count wrong results.
template <typename Count>
void ExpectSeen(Count run) {
  if (UnderTsan()) {
    EXPECT_DEATH(run(), "data race");
  } else {
    EXPECT_GT(run(), 0);
  }
}

// The block's sum of threadIdx.x + 1, by halving.
template <bool kWithBarriers>
__global__ void Reduce(float* result) {
  auto* values = Shared<float>();
  values[threadIdx.x] = static_cast<float>(threadIdx.x + 1);
  for (unsigned half = 48; half >= 3; half /= 2) {
    if (kWithBarriers) __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  __syncthreads();
  if (threadIdx.x == 0) *result = values[0] + values[1] + values[2];
}
constexpr float kSum = 4656;  // 1 + 2 + ... + 96.
constexpr std::size_t kValuesBytes = kThreads * sizeof(float);

TEST(Races, AReductionWithItsBarriersIsRight) {
  EXPECT_EQ(WrongResults(Reduce<true>, kValuesBytes, kSum), 0);
}

TEST(Races, AReductionWithoutItsBarriersIsSeen) {
  ExpectSeen([] { return WrongResults(Reduce<false>, kValuesBytes, kSum); });
}

// Each thread takes its neighbour's value in each round: all must have read a
// value before the next round overwrites it.
template <bool kWithSecondBarrier>
__global__ void Rotate(float* result) {
  auto* values = Shared<float>();
  auto mine = static_cast<float>(threadIdx.x);
  for (unsigned round = 0; round < kThreads; ++round) {
    values[threadIdx.x] = mine;
    __syncthreads();
    mine = values[(threadIdx.x + 1) % kThreads];
    if (kWithSecondBarrier) __syncthreads();
  }
  if (threadIdx.x == 5) *result = mine;
}

TEST(Races, ALoopWithBothBarriersIsRight) {
  EXPECT_EQ(WrongResults(Rotate<true>, kValuesBytes, 5), 0);
}

TEST(Races, ALoopThatOverwritesWhatOthersStillReadIsSeen) {
  ExpectSeen([] { return WrongResults(Rotate<false>, kValuesBytes, 5); });
}

// No present GPU runs lanes in lockstep: a warp needs its barrier too.
template <bool kWithBarrier>
__global__ void InAWarp(float* result) {
  auto* values = Shared<float>();
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (kWithBarrier) __syncwarp();
  const float other = values[threadIdx.x ^ 1U];
  if (threadIdx.x == 40) *result = other;
}

TEST(Races, AWarpsBarrierOrdersItsLanes) {
  EXPECT_EQ(WrongResults(InAWarp<true>, kValuesBytes, 41), 0);
}

TEST(Races, AMissingBarrierOfAWarpIsSeen) {
  ExpectSeen([] { return WrongResults(InAWarp<false>, kValuesBytes, 41); });
}

// In device memory: thread 0 reads a count to which others still add.
template <bool kWithBarrier>
__global__ void CountAll(float* result) {
  auto* count = Shared<unsigned>();
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  atomicAdd(count, 1U);
  if (kWithBarrier) __syncthreads();
  if (threadIdx.x == 0) *result = static_cast<float>(*count);
}

TEST(Races, ACountReadAfterABarrierIsWhole) {
  EXPECT_EQ(WrongResults(CountAll<true>, 4, kThreads), 0);
}

TEST(Races, ACountReadTooEarlyIsSeen) {
  ExpectSeen([] { return WrongResults(CountAll<false>, 4, kThreads); });
}

// Nothing is left from the launch or the block before.
__global__ void IsPoisoned(float* result) {
  auto* values = Shared<float>();
  if (threadIdx.x == 0) {
    for (unsigned i = 0; i < kThreads; ++i) {
      if (!std::isnan(values[i])) *result = 1;
    }
  }
  __syncthreads();
  values[threadIdx.x] = 3;
}

TEST(SharedMemory, IsNansWhenABlockBegins) {
  Managed<float> result(1);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(OnGrid(IsPoisoned, 3, kThreads, kValuesBytes, result.data()),
              cudaSuccess);
  }
  EXPECT_EQ(result[0], 0);
}

__global__ void Touch(std::size_t at, bool write, unsigned* result) {
  if (threadIdx.x != 3) return;
  auto* bytes = Shared<unsigned char>();
  if (write) {
    bytes[at] = 0xFF;
    bytes[at + 1] = 0xFF;
  } else {
    *result = bytes[at];
  }
}

TEST(SharedMemory, IsWritableUpToItsLastByte) {
  Managed<unsigned> result(1);
  for (const std::size_t bytes : {2U, 17U, 384U, 49152U}) {
    EXPECT_EQ(OnGrid(Touch, 2, 32, bytes, bytes - 2, true, result.data()),
              cudaSuccess);
  }
}

TEST(SharedMemory, AbortsAWriteBeyondItsEnd) {
  for (const std::size_t bytes : {0U, 1U, 384U, 49151U}) {
    for (const std::size_t beyond : {0U, 1U, 5000U}) {
      EXPECT_DEATH(
          OnGrid(Touch, 1, 32, bytes, bytes + beyond, true, nullptr),
          "bytes of dynamic shared memory|use-after-poison|unknown-crash")
          << bytes << " + " << beyond;
    }
  }
}

TEST(SharedMemory, GivesNansToAReadBeyondItsEnd) {
  Managed<unsigned> result(1);
  const auto run = [&](std::size_t at) {
    EXPECT_EQ(OnGrid(Touch, 1, 32, 384, at, false, result.data()), cudaSuccess);
    return result[0];
  };
#ifdef GRADIENTFLOW_ASAN
  EXPECT_DEATH(run(384), "use-after-poison");
#else
  const auto bits = static_cast<unsigned>(run(384) | run(385) << 8 |
                                          run(386) << 16 | run(387) << 24);
  EXPECT_TRUE(std::isnan(__uint_as_float(bits)));
#endif
}

enum class Split { kEnds, kOtherLine, kShuffle, kNone };
__global__ void Divergent(Split split) {
  const bool upper = threadIdx.x >= 32;
  if (upper && split == Split::kEnds) return;
  if (upper && split == Split::kOtherLine) {
    __syncthreads();
    return;
  }
  if (threadIdx.x == 40 && split == Split::kShuffle) {
    __ballot_sync(~0U, 1);
  }
  __syncthreads();
}

TEST(Barriers, AbortAndNameWhoIsWhereWhenTheBlockIsDivided) {
  EXPECT_EQ(OnGrid(Divergent, 1, kThreads, 0, Split::kNone), cudaSuccess);
  EXPECT_DEATH(OnGrid(Divergent, 3, kThreads, 0, Split::kEnds),
               "launch [0-9]+ <<<3, 96, 0>>> of .*Split(.|\n)*block [0-2], "
               "(.|\n)*threads 0 to 31 are in __syncthreads at .*race_test.cc:"
               "[0-9]+\n.*threads 32 to 95 have ended");
  EXPECT_DEATH(OnGrid(Divergent, 1, kThreads, 0, Split::kOtherLine),
               "threads 0 to 31 are in __syncthreads(.|\n)*threads 32 to 95 "
               "are in __syncthreads");
  EXPECT_DEATH(OnGrid(Divergent, 1, kThreads, 0, Split::kShuffle),
               "threads 40 to 40 are in __ballot_sync");
}

}  // namespace
}  // namespace gradientflow::cuda_shim
