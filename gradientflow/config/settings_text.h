#pragma once

#include <string>

#include "gradientflow/config/load_options.h"
#include "gradientflow/config/options.h"

// The settings table for people. Secrets are masked.
namespace gradientflow {

// Name, expected, default and meaning of all, by section, 80 columns wide: for
// the end of a program's --help.
std::string SettingsHelp();

// A Markdown table of all: that of docs/settings.md, between its markers. The
// size rules are its first line.
std::string SettingsMarkdown();

// Aligned columns: variable, present value, default, set by.
std::string SettingsReport(const LoadedOptions& loaded);

// "rank=1 size=4 wire_dtype=float16; all else default": for the start-up log.
std::string ChangedSettings(const Options& options);

}  // namespace gradientflow
