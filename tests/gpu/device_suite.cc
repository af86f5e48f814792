#include <cuda_runtime_api.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "gradientflow/device/cuda_device.h"
#include "tests/device/device_conformance.h"

// The CUDA device passes the suite of every Device.
namespace gradientflow::testing {
namespace {

class Gate {
 public:
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

std::unique_ptr<Device> Open() {
  auto device = OpenCudaDevice(0);
  EXPECT_TRUE(device.ok()) << device.status().ToString();
  return std::move(device).value();
}

// The stream waits in a host function, which may not call CUDA.
std::function<void()> Hold(Device*, Stream* stream) {
  const auto gate = std::make_shared<Gate>();
  const auto pass = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<Gate>> held(
        static_cast<std::shared_ptr<Gate>*>(argument));
    (*held)->Pass();
  };
  auto argument = std::make_unique<std::shared_ptr<Gate>>(gate);
  const cudaError_t error = cudaLaunchHostFunc(
      static_cast<cudaStream_t>(stream->native()), pass, argument.get());
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  if (error == cudaSuccess) static_cast<void>(argument.release());
  return [gate] { gate->Open(); };
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceTest,
                         ::testing::Values(DeviceKind{"cuda", &Open, &Hold}),
                         KindName);

}  // namespace
}  // namespace gradientflow::testing
