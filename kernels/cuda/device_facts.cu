#include <atomic>
#include <cstdint>
#include <mutex>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scratch.cuh"

// Facts about each device, each asked for once.
namespace gradientflow::kernels::cuda {
namespace {

constexpr int kRememberedDevices = 64;
// The pool keeps this much memory while it is unused: by default it would
// return all of it whenever the host synchronises.
constexpr std::uint64_t kKeptScratchBytes = std::uint64_t{16} << 20;

cudaError_t SetUp(cudaMemPool_t pool) {
  std::uint64_t kept = kKeptScratchBytes;
  const cudaError_t error =
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept);
  if (error != cudaSuccess) return error;
  // Otherwise a stream that reuses memory freed by another would wait for that
  // stream.
  int allowed = 0;
  return cudaMemPoolSetAttribute(
      pool, cudaMemPoolReuseAllowInternalDependencies, &allowed);
}

cudaError_t MakePool(int device, cudaMemPool_t* pool) {
  cudaMemPoolProps props = {};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = cudaMemHandleTypeNone;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = device;
  cudaError_t error = cudaMemPoolCreate(pool, &props);
  if (error != cudaSuccess) return error;
  error = SetUp(*pool);
  if (error != cudaSuccess) static_cast<void>(cudaMemPoolDestroy(*pool));
  return error;
}

}  // namespace

// Two threads that ask at once write the same number. If the device cannot be
// asked, the result is 1, and the launch that follows fails with the reason.
int Multiprocessors() {
  static std::atomic<int> remembered[kRememberedDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0) return 1;
  const bool remembers = device < kRememberedDevices;
  if (remembers) {
    const int known = remembered[device].load(std::memory_order_relaxed);
    if (known > 0) return known;
  }
  int count = 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess ||
      count < 1) {
    return 1;
  }
  if (remembers) remembered[device].store(count, std::memory_order_relaxed);
  return count;
}

int ScratchPool(cudaMemPool_t* pool) {
  static std::atomic<cudaMemPool_t> pools[kRememberedDevices];
  static std::mutex making;
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return static_cast<int>(error);
  if (device < 0 || device >= kRememberedDevices) {
    return static_cast<int>(cudaErrorInvalidValue);
  }
  *pool = pools[device].load(std::memory_order_acquire);
  if (*pool != nullptr) return 0;
  const std::lock_guard<std::mutex> lock(making);
  *pool = pools[device].load(std::memory_order_acquire);
  if (*pool != nullptr) return 0;
  const cudaError_t made = MakePool(device, pool);
  if (made == cudaSuccess) {
    pools[device].store(*pool, std::memory_order_release);
  }
  return static_cast<int>(made);
}

}  // namespace gradientflow::kernels::cuda
