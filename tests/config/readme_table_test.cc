// The README's table of settings is the one that gradientflow_info --markdown
// prints. Run from the repository's root.

#include <fstream>
#include <sstream>
#include <string>

#include "gradientflow/config/settings_text.h"
#include "gtest/gtest.h"

namespace gradientflow {
namespace {

TEST(Readme, SettingsTableIsTheGeneratedOne) {
  std::ifstream file("README.md");
  ASSERT_TRUE(file) << "README.md is not here";
  std::stringstream text;
  text << file.rdbuf();
  const std::string readme = text.str();
  const std::string begin = "<!-- settings:begin -->\n";
  const std::string end = "<!-- settings:end -->";
  const std::size_t from = readme.find(begin);
  ASSERT_NE(from, std::string::npos) << "no " << begin;
  const std::size_t first = from + begin.size();
  const std::size_t to = readme.find(end, first);
  ASSERT_NE(to, std::string::npos) << "no " << end;
  EXPECT_EQ(readme.substr(first, to - first), SettingsMarkdown())
      << "paste the output of gradientflow_info --markdown there";
}

}  // namespace
}  // namespace gradientflow
