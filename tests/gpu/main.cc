#include <gtest/gtest.h>

#include <cstdio>

#include "gradientflow/device/cuda_device.h"

// main() of tests that need a GPU: without one they report a skip and succeed.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto device = gradientflow::OpenCudaDevice(0);
  if (!device.ok() && !GTEST_FLAG_GET(list_tests)) {
    std::printf("SKIPPED: cuda: no device\n");
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
