#pragma once

#include <cstdint>
#include <string>

namespace gradientflow {

enum class LogLevel : std::uint8_t { kError, kWarning, kInfo, kDebug };

// Log lines for people. Thread-safe. Each call writes one line, which stays
// whole even if several processes share a terminal. The communicator owns one
// and lends it.
class Logger {
 public:
  virtual ~Logger() = default;
  virtual bool Enabled(LogLevel level) const = 0;
  virtual void Log(LogLevel level, const std::string& line) = 0;
};

}  // namespace gradientflow
