// Checks that what the C header says about the library is true. Run from the
// repository's root.

#include <cctype>
#include <fstream>
#include <sstream>
#include <string>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/version.h"
#include "gtest/gtest.h"
#include "integrations/c/gradientflow_base.h"

namespace gradientflow {
namespace {

std::string Header() {
  std::ifstream file("integrations/c/gradientflow_base.h");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Enumerator(std::string_view name, int value) {
  std::string text = "  GF_";
  for (const char c : name) {
    text += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return StrCat(text, " = ", value);
}

TEST(Version, IsTheCApis) {
  EXPECT_EQ(kVersionMajor, GF_VERSION_MAJOR);
  EXPECT_EQ(kVersionMinor, GF_VERSION_MINOR);
}

TEST(CHeader, HasEveryDtypeByItsNumber) {
  const std::string header = Header();
  ASSERT_FALSE(header.empty())
      << "integrations/c/gradientflow_base.h is not here";
  for (int i = 0; i < kernels::kDTypes; ++i) {
    const std::string line = Enumerator(Name(static_cast<DType>(i)), i);
    EXPECT_NE(header.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(GF_FLOAT32, static_cast<int>(DType::kFloat32));
  EXPECT_EQ(GF_UINT8, static_cast<int>(DType::kUInt8));
}

TEST(CHeader, HasEveryOperationByItsNumber) {
  const std::string header = Header();
  for (int i = 0; i < kReduceOps; ++i) {
    const std::string line = Enumerator(Name(static_cast<ReduceOp>(i)), i);
    EXPECT_NE(header.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace gradientflow
