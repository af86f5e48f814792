// What config says about other parts of the library, which it must not depend
// on, holds.

#include <cstddef>
#include <string>
#include <string_view>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/config/settings_table.h"
#include "gradientflow/config/version.h"
#include "gtest/gtest.h"
#include "integrations/c/gradientflow.h"

namespace gradientflow {
namespace {

TEST(Version, IsTheCApis) {
  EXPECT_EQ(kVersionMajor, GF_VERSION_MAJOR);
  EXPECT_EQ(kVersionMinor, GF_VERSION_MINOR);
}

TEST(AlgorithmNames, AreThoseOfTheCollectives) {
  std::size_t known = 0;
  for (const std::string_view name : AlgorithmNames()) {
    const auto parsed = ParseAllreduceAlgorithm(name);
    ASSERT_TRUE(parsed.ok()) << name;
    EXPECT_EQ(Name(parsed.value()), name);
    // Each algorithm once: the list is in the enumerators' order.
    EXPECT_EQ(static_cast<std::size_t>(parsed.value()), known++);
  }
  EXPECT_EQ(known, static_cast<std::size_t>(AllreduceAlgorithm::kTwoLevel) + 1);
}

}  // namespace
}  // namespace gradientflow
