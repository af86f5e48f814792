#include <gtest/gtest.h>

#include <cstring>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/csc/memory.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/csc/csc_golden.h"
#include "tests/cuda_shim/cuda_shim.h"
#include "tests/kernels/backend.h"

// The golden values of CSC with CUDA's kernels.
namespace gradientflow::testing {
namespace {

class ShimMemory final : public CscMemory {
 public:
  ShimMemory() {
    kernels::testing::BeforeLaunch();
    kernels::testing::AfterLaunch();
  }
  bool asynchronous() const override { return true; }
  std::string description() const override { return "the shim"; }
  const kernels::ChunkKernelTable& kernels() const override {
    return *kernels::CudaChunkKernels();
  }
  void* stream() const override { return nullptr; }
  Status KernelStatus(const char* kernel, int error) const override {
    if (error == 0) return {};
    return {StatusCode::kInternal, StrCat(kernel, " failed: ", error)};
  }
  Result<DeviceMemory> Allocate(std::size_t bytes) override {
    auto* data = static_cast<std::byte*>(cuda_shim::AllocateManaged(bytes));
    std::memset(data, 0, bytes);
    return DeviceMemory(data, [](std::byte* p) { cuda_shim::FreeManaged(p); });
  }
  Result<DeviceMemory> AllocateOnHost(std::size_t bytes) override {
    return Allocate(bytes);
  }
  Status Copy(void* dst, const void* src, std::size_t bytes) override {
    std::memcpy(dst, src, bytes);
    return {};
  }
  Status Zero(void* grads, std::size_t bytes) override {
    std::memset(grads, 0, bytes);
    return {};
  }
  // The golden gradients are of float32.
  Status ReadGradients(const void* grads, DType, float* values,
                       std::size_t n) override {
    return Copy(values, grads, n * sizeof(float));
  }
  Status WriteGradients(const float* values, void* grads, DType,
                        std::size_t n) override {
    return Copy(grads, values, n * sizeof(float));
  }
  Status Synchronize() override { return {}; }
  Status Mark() override { return {}; }
  Result<bool> Reached() const override { return true; }
};

TEST(ShimMemory, FollowsTheGoldenValues) {
  ShimMemory memory;
  ExpectGoldenSteps(memory);
}

TEST(ShimMemory, FollowsTheGoldenValuesInTheGradients) {
  ShimMemory memory;
  ExpectGoldenSteps(memory, ResidualPlace::kInGradients);
}

TEST(ShimMemory, KeepsWhatASkippedStepHadSent) {
  ShimMemory memory;
  ExpectSkippedStep(memory);
  ExpectSkippedStep(memory, ResidualPlace::kInGradients);
}

}  // namespace
}  // namespace gradientflow::testing
