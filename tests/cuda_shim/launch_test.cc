#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_shim/cuda_shim.h"
#include "tests/cuda_shim/include/cuda_runtime.h"
#include "tests/cuda_shim/on_grid.h"

namespace gradientflow::cuda_shim {
namespace {

constexpr std::size_t kKiB = 1024;

// tickets[i] is the number of the i-th thread that ran.
__global__ void Tickets(unsigned* next, unsigned* tickets) {
  const unsigned ticket = atomicAdd(next, 1U);
  tickets[ticket] = blockIdx.x * blockDim.x + threadIdx.x;
}

std::vector<unsigned> RunTickets(unsigned blocks, unsigned threads) {
  Managed<unsigned> next(1);
  Managed<unsigned> tickets(std::size_t{blocks} * threads);
  EXPECT_EQ(OnGrid(Tickets, blocks, threads, 0, next.data(), tickets.data()),
            cudaSuccess);
  EXPECT_EQ(next[0], blocks * threads);
  return {tickets.data(), tickets.data() + tickets.size()};
}

TEST(Launch, RunsEveryThreadOnceEvenOfAGridLargerThanTheDevice) {
  SetSeed(1);
  for (const unsigned blocks : {1U, 7U, 1000U}) {
    for (const unsigned threads : {1U, 31U, 33U, 1024U}) {
      if (blocks * threads > 100000) continue;
      std::vector<unsigned> seen = RunTickets(blocks, threads);
      std::set<unsigned> all(seen.begin(), seen.end());
      EXPECT_EQ(all.size(), seen.size());
      EXPECT_EQ(*all.rbegin(), blocks * threads - 1);
    }
  }
}

TEST(Launch, RunsBlocksAndThreadsInManyOrders) {
  SetSeed(1);
  std::set<unsigned> first_blocks;
  std::set<unsigned> first_threads;
  for (int i = 0; i < 60; ++i) {
    const unsigned first = RunTickets(10, 40)[0];
    first_blocks.insert(first / 40);
    first_threads.insert(first % 40);
  }
  EXPECT_EQ(first_blocks.count(0) + first_blocks.count(9), 2U);
  EXPECT_GT(first_blocks.size(), 4U);
  EXPECT_EQ(first_threads.count(0) + first_threads.count(39), 2U);
  EXPECT_GT(first_threads.size(), 8U);
}

TEST(Launch, RepeatsItsOrdersForASeed) {
  std::vector<std::vector<unsigned>> runs[3];
  const std::uint64_t seeds[] = {5, 5, 6};
  for (int run = 0; run < 3; ++run) {
    SetSeed(seeds[run]);
    for (int i = 0; i < 5; ++i) runs[run].push_back(RunTickets(3, 70));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

__global__ void Shape(unsigned* out) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    out[0] = gridDim.x;
    out[1] = blockDim.x;
  }
}

TEST(Launch, TellsKernelsTheirShape) {
  Managed<unsigned> out(2);
  ASSERT_EQ(OnGrid(Shape, 3, 65, 0, out.data()), cudaSuccess);
  EXPECT_EQ(out[0], 3U);
  EXPECT_EQ(out[1], 65U);
}

struct Thousand {
  double values[125];
};
__global__ void Copied(Thousand in, double* out) {
  in.values[7] += 1;  // Seen by this thread only.
  out[threadIdx.x] = in.values[7];
}

TEST(Launch, GivesEachThreadItsOwnArguments) {
  Managed<double> out(50);
  Thousand in = {};
  in.values[7] = 0.5;
  ASSERT_EQ(OnGrid(Copied, 1, 50, 0, in, out.data()), cudaSuccess);
  for (std::size_t i = 0; i < 50; ++i) EXPECT_EQ(out[i], 1.5);
}

TEST(Launch, RefusesShapesThatNoDeviceHas) {
  struct Refused {
    unsigned blocks;
    unsigned threads;
    std::size_t shared_bytes;
    cudaError_t error;
  };
  Managed<unsigned> out(2);
  static_cast<void>(cudaGetLastError());
  const std::uint64_t before = Launches();
  for (const Refused& r :
       {Refused{0, 32, 0, cudaErrorInvalidConfiguration},
        Refused{0x80000000U, 32, 0, cudaErrorInvalidConfiguration},
        Refused{1, 0, 0, cudaErrorInvalidConfiguration},
        Refused{1, 1025, 0, cudaErrorInvalidConfiguration},
        Refused{1, 32, 48 * kKiB + 1, cudaErrorInvalidValue}}) {
    EXPECT_EQ(OnGrid(Shape, r.blocks, r.threads, r.shared_bytes, out.data()),
              r.error);
    EXPECT_EQ(cudaPeekAtLastError(), r.error);
    EXPECT_EQ(cudaGetLastError(), r.error);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  EXPECT_EQ(Launches(), before);
  EXPECT_EQ(out[0], 0U);
  EXPECT_EQ(OnGrid(Shape, 1, 1024, 48 * kKiB, out.data()), cudaSuccess);
}

__global__ void Roomy(unsigned* out) { atomicAdd(out, 1U); }

TEST(Launch, TakesMoreSharedMemoryOnlyForKernelsThatAskedFirst) {
  Managed<unsigned> out(1);
  const auto most = static_cast<int>(227 * kKiB);
  EXPECT_EQ(OnGrid(Roomy, 1, 1, 227 * kKiB, out.data()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(
                Roomy, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
            cudaErrorInvalidValue);
  ASSERT_EQ(cudaFuncSetAttribute(
                Roomy, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
            cudaSuccess);
  EXPECT_EQ(OnGrid(Roomy, 1, 1, 227 * kKiB, out.data()), cudaSuccess);
  EXPECT_EQ(OnGrid(Roomy, 1, 1, 227 * kKiB + 1, out.data()),
            cudaErrorInvalidValue);
  EXPECT_EQ(out[0], 1U);
}

__global__ void Late(unsigned* out) { atomicAdd(out, 1U); }

TEST(Launch, AbortsForAKernelThatIsNotLoadedIfThatIsRequired) {
  Managed<unsigned> out(1);
  EXPECT_DEATH(
      {
        RequireLoaded();
        OnGrid(Late, 1, 1, 0, out.data());
      },
      "launched before it was loaded: .*Launch");
  cudaFuncAttributes attributes;
  EXPECT_EQ(cudaFuncGetAttributes(&attributes, nullptr), cudaErrorInvalidValue);
  EXPECT_EXIT(
      {
        RequireLoaded();
        static_cast<void>(cudaFuncGetAttributes(
            &attributes, reinterpret_cast<const void*>(&Late)));
        std::_Exit(OnGrid(Late, 1, 1, 0, out.data()));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Launch, WorksOnSeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 20; ++i) {
        const std::vector<unsigned> seen = RunTickets(4, 64);
        EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0U), 255U * 128U);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Device, SaysHowManyMultiprocessorsItWasGiven) {
  int device = -1;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  int count = 0;
  const auto ask = [&] {
    return cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount,
                                  device);
  };
  ASSERT_EQ(ask(), cudaSuccess);
  EXPECT_EQ(count, 2);
  SetMultiprocessors(7);
  ASSERT_EQ(ask(), cudaSuccess);
  EXPECT_EQ(count, 7);
  SetMultiprocessors(2);
  EXPECT_EQ(cudaDeviceGetAttribute(&count, cudaDevAttrWarpSize, 1),
            cudaErrorInvalidValue);
  EXPECT_STREQ(cudaGetErrorString(cudaGetLastError()), "cudaErrorInvalidValue");
}

}  // namespace
}  // namespace gradientflow::cuda_shim
