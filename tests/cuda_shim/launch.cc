#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <vector>

#include "tests/cuda_shim/block.h"
#include "tests/cuda_shim/cuda_shim.h"
#include "tests/cuda_shim/include/cuda_runtime.h"
#include "tests/cuda_shim/memory.h"

namespace gradientflow::cuda_shim {
namespace {

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostBlocks = 0x7FFFFFFF;
constexpr int kThreadsPerMultiprocessor = 2048;

std::atomic<std::uint64_t> seed{20190215};
std::atomic<std::uint64_t> launches{0};
std::atomic<int> multiprocessors{2};
thread_local cudaError_t last_error = cudaSuccess;

// Kernels that may use more dynamic shared memory than usual.
std::mutex opted_in_mutex;
std::map<const void*, int>& OptedIn() {
  static auto* const kernels = new std::map<const void*, int>;
  return *kernels;
}

// Whether kernels must be loaded before their first launch.
std::atomic<bool> require_loaded{false};
std::mutex loaded_mutex;
std::set<const void*>& Loaded() {
  static auto* const kernels = new std::set<const void*>;
  return *kernels;
}

void CheckLoaded(const Kernel& kernel) {
  if (!require_loaded) return;
  const std::lock_guard<std::mutex> lock(loaded_mutex);
  if (Loaded().count(kernel.address) == 1) return;
  std::fprintf(stderr, "cuda_shim: launched before it was loaded: %s\n",
               kernel.name);
  std::abort();
}

std::size_t MostShared(const void* kernel) {
  const std::lock_guard<std::mutex> lock(opted_in_mutex);
  const auto found = OptedIn().find(kernel);
  return found == OptedIn().end() ? kUsualShared
                                  : static_cast<std::size_t>(found->second);
}

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t Check(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 ||
      config.numAttrs != 0) {
    std::fprintf(stderr, "cuda_shim: only x is known, and no attributes\n");
    std::abort();
  }
  if (grid.x == 0 || grid.x > kMostBlocks || block.x == 0 ||
      block.x > kMostThreads) {
    return cudaErrorInvalidConfiguration;
  }
  if (config.dynamicSmemBytes > MostShared(kernel)) {
    return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

std::vector<unsigned> OrderOfBlocks(unsigned blocks, Random& random) {
  std::vector<unsigned> order(blocks);
  std::iota(order.begin(), order.end(), 0U);
  const auto how = static_cast<Order>(random.Below(3));
  if (how == Order::kDescending) std::reverse(order.begin(), order.end());
  if (how == Order::kRandom) {
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
  }
  return order;
}

}  // namespace

void SetSeed(std::uint64_t new_seed) {
  seed = new_seed;
  launches = 0;
}
void SetMultiprocessors(int count) { multiprocessors = count; }
std::uint64_t Launches() { return launches; }
void RequireLoaded() { require_loaded = true; }

cudaError_t Launch(const cudaLaunchConfig_t& config, const Kernel& kernel) {
  const cudaError_t error = Check(config, kernel.address);
  if (error != cudaSuccess) return Return(error);
  CheckLoaded(kernel);
  if (running_block != nullptr) {
    running_block->Fail("a kernel may not launch another one");
  }
  // Kept for the life of the thread: making stacks costs more than running on
  // them.
  thread_local BlockRunner runner;
  const LaunchFacts facts = {++launches, kernel.name, config.gridDim.x,
                             config.blockDim.x, config.dynamicSmemBytes};
  Random random(seed + facts.number * 0x1000003);
  gridDim = {facts.blocks, 1, 1};
  blockDim = {facts.threads, 1, 1};
  const DeviceAccess access;
  for (const unsigned block : OrderOfBlocks(facts.blocks, random)) {
    runner.Run(facts, kernel, block, random.Next());
  }
  return cudaSuccess;
}

}  // namespace gradientflow::cuda_shim

using gradientflow::cuda_shim::kMostShared;
using gradientflow::cuda_shim::kUsualShared;

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* kernel) {
  namespace shim = gradientflow::cuda_shim;
  if (kernel == nullptr) return shim::Return(cudaErrorInvalidValue);
  const std::lock_guard<std::mutex> lock(shim::loaded_mutex);
  shim::Loaded().insert(kernel);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel,
                                 cudaFuncAttribute attribute, int value) {
  namespace shim = gradientflow::cuda_shim;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<std::size_t>(value) > kMostShared) {
    return shim::Return(cudaErrorInvalidValue);
  }
  const std::lock_guard<std::mutex> lock(shim::opted_in_mutex);
  shim::OptedIn()[kernel] = value;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}

cudaError_t cudaPeekAtLastError() {
  return gradientflow::cuda_shim::last_error;
}
cudaError_t cudaGetLastError() {
  return std::exchange(gradientflow::cuda_shim::last_error, cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  namespace shim = gradientflow::cuda_shim;
  if (device != 0) return shim::Return(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = shim::kMostThreads;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kUsualShared;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = warpSize;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = shim::multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = shim::kThreadsPerMultiprocessor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kMostShared + 1024;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMostShared;
      return cudaSuccess;
  }
  return shim::Return(cudaErrorInvalidValue);
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
