#include <gtest/gtest.h>

// In place of a suite, where there is no code of nvcc's to execute.
TEST(CudaPtx, NeedsNvcc) {
  GTEST_SKIP() << "no nvcc, or --define=cuda=off: the CUDA kernels' PTX is not "
                  "executed";
}
