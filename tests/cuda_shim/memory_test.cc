#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/cuda_shim/cuda_shim.h"
#include "tests/cuda_shim/include/cuda_runtime.h"
#include "tests/cuda_shim/on_grid.h"

namespace gradientflow::cuda_shim {
namespace {

cudaMemPool_t NewPool() {
  const cudaMemPoolProps props = {cudaMemAllocationTypePinned,
                                  cudaMemHandleTypeNone,
                                  {cudaMemLocationTypeDevice, 0}};
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaMemPoolCreate(&pool, &props), cudaSuccess);
  return pool;
}

// A pool like the one that kernels/cuda/device_facts.cu makes.
cudaMemPool_t Pool() {
  static const cudaMemPool_t pool = [] {
    const cudaMemPool_t made = NewPool();
    std::uint64_t kept = 1;
    EXPECT_EQ(
        cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &kept),
        cudaSuccess);
    int allowed = 0;
    EXPECT_EQ(cudaMemPoolSetAttribute(
                  made, cudaMemPoolReuseAllowInternalDependencies, &allowed),
              cudaSuccess);
    return made;
  }();
  return pool;
}

unsigned* Allocate(std::size_t n) {
  void* memory = nullptr;
  EXPECT_EQ(
      cudaMallocFromPoolAsync(&memory, n * sizeof(unsigned), Pool(), nullptr),
      cudaSuccess);
  return static_cast<unsigned*>(memory);
}
void Free(void* memory) {
  EXPECT_EQ(cudaFreeAsync(memory, nullptr), cudaSuccess);
}

__global__ void Copy(const unsigned* in, unsigned* out, std::size_t n) {
  for (std::size_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = in[i];
}
__global__ void Write(unsigned* out, std::ptrdiff_t at) { out[at] = 5; }

TEST(DeviceMemory, BeginsAsNansAndIsAlignedAsCudaDoes) {
  for (const std::size_t n : {1U, 3U, 1000U, 5000U}) {
    unsigned* memory = Allocate(n);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0U);
    Managed<unsigned> seen(n);
    ASSERT_EQ(OnGrid(Copy, 1, 32, 0, memory, seen.data(), n), cudaSuccess);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(seen[i], 0xFFFFFFFFU);
    Free(memory);
  }
}

TEST(DeviceMemory, IsSetAndCopiedByTheRuntime) {
  constexpr std::size_t kN = 77;
  unsigned* memory = Allocate(kN);
  unsigned host[kN];
  ASSERT_EQ(cudaMemsetAsync(memory, 0x21, kN * 4, nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host, memory, kN * 4, cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (const unsigned value : host) EXPECT_EQ(value, 0x21212121U);
  Free(memory);
}

TEST(DeviceMemory, IsNothingForNoBytes) {
  void* memory = &memory;
  EXPECT_EQ(cudaMallocFromPoolAsync(&memory, 0, Pool(), nullptr), cudaSuccess);
  EXPECT_EQ(memory, nullptr);
  Free(nullptr);
}

TEST(DeviceMemory, EndsAHostThatTouchesIt) {
  unsigned* memory = Allocate(4);
  EXPECT_DEATH(static_cast<volatile unsigned*>(memory)[0] = 1, "");
  EXPECT_DEATH(static_cast<void>(static_cast<volatile unsigned*>(memory)[0]),
               "");
  Free(memory);
}

TEST(DeviceMemory, AbortsForAWriteBesideIt) {
  for (const std::ptrdiff_t at : {-1, 5, 40}) {
    EXPECT_DEATH(
        {
          unsigned* memory = Allocate(5);
          OnGrid(Write, 1, 1, 0, memory, at);
          Free(memory);
        },
        "written outside of an allocation|use-after-poison");
  }
}

TEST(DeviceMemory, AbortsForAFreeOfWhatIsNotAllocated) {
  unsigned* memory = Allocate(5);
  EXPECT_DEATH(Free(memory + 1), "not allocated");
  Free(memory);
  EXPECT_DEATH(Free(memory), "not allocated");
}

TEST(DeviceMemory, AbortsAProcessThatEndsWithSomeLeft) {
  EXPECT_EXIT(
      {
        Allocate(5);
        std::exit(0);
      },
      ::testing::KilledBySignal(SIGABRT),
      "cudaMallocFromPoolAsync without cudaFreeAsync");
}

TEST(DeviceMemory, ComesOnlyFromPoolsOfOurOwnThatKeepItAndLetNoStreamWait) {
  void* memory = nullptr;
  const auto take = [&](cudaMemPool_t pool) {
    static_cast<void>(cudaMallocFromPoolAsync(&memory, 8, pool, nullptr));
  };
  EXPECT_DEATH(take(nullptr), "pool that is not set up");
  const cudaMemPool_t bare = NewPool();
  EXPECT_DEATH(take(bare), "pool that is not set up");
  std::uint64_t kept = 1;
  EXPECT_EQ(
      cudaMemPoolSetAttribute(bare, cudaMemPoolAttrReleaseThreshold, &kept),
      cudaSuccess);
  EXPECT_DEATH(take(bare), "pool that is not set up");
  EXPECT_EQ(cudaMemPoolDestroy(bare), cudaSuccess);
  cudaMemPoolProps props = {cudaMemAllocationTypePinned,
                            cudaMemHandleTypeNone,
                            {cudaMemLocationTypeDevice, 1}};
  cudaMemPool_t pool = nullptr;
  EXPECT_EQ(cudaMemPoolCreate(&pool, &props), cudaErrorInvalidValue);
}

TEST(ManagedMemory, IsTheHostsOrOnlyTheKernels) {
  Managed<unsigned> memory(3);
  memory[1] = 8;
  LetHostTouchManaged(false);
  EXPECT_DEATH(static_cast<volatile unsigned*>(memory.data())[1] = 1, "");
  ASSERT_EQ(OnGrid(Write, 1, 1, 0, memory.data(), 2), cudaSuccess);
  EXPECT_DEATH(static_cast<volatile unsigned*>(memory.data())[1] = 1, "");
  LetHostTouchManaged(true);
  EXPECT_EQ(memory[0], 0U);
  EXPECT_EQ(memory[1], 8U);
  EXPECT_EQ(memory[2], 5U);
}

}  // namespace
}  // namespace gradientflow::cuda_shim
