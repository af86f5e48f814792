#include "gradientflow/config/settings_text.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "gradientflow/config/load_options.h"
#include "gradientflow/config/options.h"
#include "gradientflow/config/settings_table.h"
#include "gtest/gtest.h"
#include "tests/config/env.h"

namespace gradientflow {
namespace {

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The text without line breaks and repeated blanks.
std::string Flat(const std::string& text) {
  std::istringstream in(text);
  std::string flat;
  for (std::string word; in >> word;) flat += word + " ";
  return flat;
}

TEST(SettingsHelp, TellsAllOfEachSettingWithin80Columns) {
  const std::string help = SettingsHelp();
  const std::string flat = Flat(help);
  for (const Setting& setting : Settings()) {
    EXPECT_NE(help.find("  " + setting.variable() + "  (default: "),
              std::string::npos);
    EXPECT_NE(flat.find(std::string(setting.expected)), std::string::npos);
    EXPECT_NE(flat.find(std::string(setting.meaning)), std::string::npos);
    EXPECT_NE(help.find("\n" + std::string(setting.section) + ":\n"),
              std::string::npos);
  }
  for (const std::string& line : Lines(help)) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

TEST(SettingsMarkdown, IsOneTableWithARowPerSetting) {
  const std::vector<std::string> lines = Lines(SettingsMarkdown());
  ASSERT_GT(lines.size(), 4U);
  EXPECT_EQ(lines[1], "");
  for (std::size_t i = 2; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    EXPECT_EQ(line.front(), '|');
    EXPECT_EQ(std::count(line.begin(), line.end(), '|') -
                  std::count(line.begin(), line.end(), '\\'),
              5)
        << line;
  }
  const auto rows =
      std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
        return line.find("| `GRADIENTFLOW_") == 0;
      });
  EXPECT_EQ(static_cast<std::size_t>(rows), Settings().size());
}

TEST(SettingsReport, AlignsItsColumnsAndMasksSecrets) {
  const LoadedOptions loaded = LoadOptions(
      Env{"GRADIENTFLOW_JOB_TOKEN=hunter2", "GRADIENTFLOW_SPARSITY=0.5"}.get());
  const std::string report = SettingsReport(loaded);
  EXPECT_EQ(report.find("hunter2"), std::string::npos);
  const std::vector<std::string> lines = Lines(report);
  ASSERT_EQ(lines.size(), Settings().size() + 1);
  const std::size_t value = lines[0].find("value");
  const std::size_t set_by = lines[0].find("set by");
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].find(Settings()[i - 1].variable()), 0U);
    EXPECT_EQ(lines[i].substr(value - 2, 2), "  ") << lines[i];
    EXPECT_NE(lines[i][value], ' ') << lines[i];
    EXPECT_NE(lines[i][set_by], ' ') << lines[i];
    if (lines[i].find("GRADIENTFLOW_SPARSITY") == 0) {
      EXPECT_EQ(lines[i].substr(value, 3), "0.5");
      EXPECT_EQ(lines[i].substr(set_by), "environment");
    }
  }
}

TEST(ChangedSettings, ListsWhatDiffersFromTheDefaults) {
  Options options;
  EXPECT_EQ(ChangedSettings(options), "all settings default");
  options.rank = 1;
  options.job_token = "hunter2";
  options.wire_dtype = DType::kFloat16;
  EXPECT_EQ(ChangedSettings(options),
            "rank=1 job_token=*** wire_dtype=float16; all else default");
}

}  // namespace
}  // namespace gradientflow
