#include <gtest/gtest.h>

TEST(GpuEngine, IsTestedWithoutCuda) {
  GTEST_SKIP() << "this build has CUDA's device: --define=cuda=off has none";
}
