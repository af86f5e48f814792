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
  Status KernelStatus(const char* kernel, int error) const override {
    if (error == 0) return {};
    return {StatusCode::kInternal, StrCat(kernel, " failed: ", error)};
  }
  Status Convert(const kernels::ConvertArgs& args) override {
    return KernelStatus("convert",
                        kernels::CudaKernels()->convert(args, nullptr));
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
