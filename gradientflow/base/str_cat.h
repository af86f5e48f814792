#pragma once

#include <sstream>
#include <string>
#include <utility>

namespace gradientflow {

// Returns the parts, streamed one after another. For messages, not for hot
// paths.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace gradientflow
