#pragma once

#include <string>

#include "gradientflow/config/load_options.h"
#include "gradientflow/config/options.h"

// The settings table as text for people. Secrets are masked.
namespace gradientflow {

// Returns name, expected value, default and meaning of all settings, by
// section, in 80 columns: for the end of a program's --help.
std::string SettingsHelp();

// Returns a Markdown table of all settings: the one in docs/settings.md between
// its markers. The rules for sizes are the first line.
std::string SettingsMarkdown();

// Returns aligned columns: variable, current value, default, set by.
std::string SettingsReport(const LoadedOptions& loaded);

// Returns "rank=1 size=4 wire_dtype=float16; all else default", for the log at
// start-up.
std::string ChangedSettings(const Options& options);

}  // namespace gradientflow
