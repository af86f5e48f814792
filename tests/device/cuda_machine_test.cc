#include <gtest/gtest.h>

#include <string>

#include "gradientflow/device/cuda_device.h"
#include "gradientflow/device/cuda_facts.h"

// What the library as built reports on the machine as it is; true on every
// machine, with and without a GPU, a driver or a toolkit.
namespace gradientflow {
namespace {

TEST(CudaMachineTest, OpensAFirstDeviceOrSaysWhyThereIsNone) {
  const CudaFacts facts = ReadCudaFacts();
  const auto device = OpenCudaDevice(0);
  EXPECT_EQ(device.ok(), !facts.devices.empty()) << facts.ToString() << "\n"
                                                 << device.status().ToString();
  if (device.ok()) {
    EXPECT_NE(device.value()->description().find(facts.devices[0].name),
              std::string::npos);
    return;
  }
  EXPECT_EQ(device.status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(device.status().message().find("cuda: no device ("), 0);
  EXPECT_EQ(facts.ToString(), device.status().message());
  EXPECT_NE(facts.reason, "");
}

}  // namespace
}  // namespace gradientflow
