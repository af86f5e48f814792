#include "tests/cuda_ptx/library.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

// What nvcc makes of the kernels is all known here.
namespace gradientflow::cuda_ptx {
namespace {

// --define=cuda_archs may leave out what is between.
TEST(Library, HasTheOldestAndTheNewestArchitectureOfUsers) {
  EXPECT_EQ(Library::Get().architectures().front(), "80");
  EXPECT_EQ(Library::Get().architectures().back(), "100");
}

TEST(Library, DecodesEveryKernelOfEveryArchitecture) {
  for (Program& program : Library::Get().programs()) {
    const std::vector<std::string> names = program.kernels();
    EXPECT_GT(names.size(), 200U) << program.name();
    for (const std::string& name : names) {
      const Result<Kernel*> kernel = program.Find(name);
      EXPECT_TRUE(kernel.ok()) << kernel.status().message();
    }
    std::printf("cuda_ptx: %s: %zu kernels\n", program.name().c_str(),
                names.size());
  }
}

}  // namespace
}  // namespace gradientflow::cuda_ptx
