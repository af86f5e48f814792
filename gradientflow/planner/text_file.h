#pragma once

#include <string>
#include <string_view>

#include "gradientflow/base/status.h"

// Whole files as text. Any thread; errors name the file.
namespace gradientflow::planner {

// Returns kInvalidArgument if the file cannot be read.
Result<std::string> ReadTextFile(const std::string& path);

// Replaces the file in one step, so that no reader sees half of it. Returns
// kInvalidArgument if it cannot be written.
Status WriteTextFile(const std::string& path, std::string_view text);

}  // namespace gradientflow::planner
