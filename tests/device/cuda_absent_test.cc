#include <gtest/gtest.h>

#include <string>

#include "gradientflow/device/cuda_device.h"
#include "gradientflow/device/cuda_facts.h"

namespace gradientflow {
namespace {

TEST(CudaAbsentTest, ABuildWithoutCudaSaysSo) {
  const CudaFacts facts = ReadCudaFacts();
  EXPECT_FALSE(facts.built_in);
  EXPECT_TRUE(facts.devices.empty());
  EXPECT_NE(facts.ToString().find("cuda: no device (built without CUDA: "),
            std::string::npos)
      << facts.ToString();
  const Status status = OpenCudaDevice(0).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), facts.ToString());
}

}  // namespace
}  // namespace gradientflow
