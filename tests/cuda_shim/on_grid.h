#pragma once

#include <gtest/gtest.h>

#include <cstddef>

#include "tests/cuda_shim/cuda_shim.h"
#include "tests/cuda_shim/include/cuda_runtime.h"

namespace gradientflow::cuda_shim {

// Death tests start their program anew, since after a fork the thread sanitizer
// has lost the order of earlier events.
class DeathTestStyle : public ::testing::Environment {
 public:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
inline ::testing::Environment* const kDeathTestStyle =
    ::testing::AddGlobalTestEnvironment(new DeathTestStyle);

// n values, all 0, for the host and for kernels.
template <typename T>
class Managed {
 public:
  explicit Managed(std::size_t n)
      : n_(n), data_(static_cast<T*>(AllocateManaged(n * sizeof(T)))) {}
  ~Managed() { FreeManaged(data_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;

  T* data() { return data_; }
  std::size_t size() const { return n_; }
  T& operator[](std::size_t i) { return data_[i]; }

 private:
  std::size_t n_;
  T* data_;
};

template <typename... Params, typename... Args>
cudaError_t OnGrid(void (*kernel)(Params...), unsigned blocks, unsigned threads,
                   std::size_t shared_bytes, Args... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace gradientflow::cuda_shim

// The name that kernels/cuda/launch.cuh uses.
namespace gradientflow::kernels::cuda {
extern __shared__ __align__(16) unsigned char gf_shared_memory[];
}  // namespace gradientflow::kernels::cuda
