// Checks that the table of docs/settings.md is the one that gradientflow_info
// --markdown prints. Run from the repository's root.

#include <fstream>
#include <sstream>
#include <string>

#include "gradientflow/config/settings_text.h"
#include "gtest/gtest.h"

namespace gradientflow {
namespace {

TEST(SettingsDoc, TableIsTheGeneratedOne) {
  std::ifstream file("gradientflow/docs/settings.md");
  ASSERT_TRUE(file) << "gradientflow/docs/settings.md is not here";
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  const std::string begin = "<!-- settings:begin -->\n";
  const std::string end = "<!-- settings:end -->";
  const std::size_t from = page.find(begin);
  ASSERT_NE(from, std::string::npos) << "no " << begin;
  const std::size_t first = from + begin.size();
  const std::size_t to = page.find(end, first);
  ASSERT_NE(to, std::string::npos) << "no " << end;
  EXPECT_EQ(page.substr(first, to - first), SettingsMarkdown())
      << "paste the output of gradientflow_info --markdown there";
}

}  // namespace
}  // namespace gradientflow
