#pragma once

#include <cstdint>
#include <string>

namespace gradientflow {

enum class LogLevel : std::uint8_t { kError, kWarning, kInfo, kDebug };

// Lines for a person. Thread-safe; one line per call, whole even when several
// processes share a terminal. The Session owns one and lends it.
class Logger {
 public:
  virtual ~Logger() = default;
  virtual bool Enabled(LogLevel level) const = 0;
  virtual void Log(LogLevel level, const std::string& line) = 0;
};

}  // namespace gradientflow
