#include <atomic>

#include "kernels/cuda/launch.cuh"

namespace gradientflow::kernels::cuda {
namespace {

constexpr int kRememberedDevices = 64;

}  // namespace

// Two threads that ask at once write the same number. Where the device cannot
// be asked, 1: the launch that follows fails with the reason.
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

}  // namespace gradientflow::kernels::cuda
