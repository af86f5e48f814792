// What config says about other parts of the library, which it must not depend
// on, holds.

#include "gradientflow/config/version.h"
#include "gtest/gtest.h"
#include "integrations/c/gradientflow.h"

namespace gradientflow {
namespace {

TEST(Version, IsTheCApis) {
  EXPECT_EQ(kVersionMajor, GF_VERSION_MAJOR);
  EXPECT_EQ(kVersionMinor, GF_VERSION_MINOR);
}

}  // namespace
}  // namespace gradientflow
