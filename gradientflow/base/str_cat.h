#pragma once

#include <sstream>
#include <string>

namespace gradientflow {

// The parts, streamed one after the other. For messages, not for hot paths.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace gradientflow
