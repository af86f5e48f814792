#pragma once

#include <string>

#include "gradientflow/observe/logger.h"

namespace gradientflow {

// Writes "gradientflow[rank 2] W: ..." to a file descriptor, with one write(2)
// per call, so that processes that share a terminal or a pipe do not cut each
// other's lines (up to 4096 bytes, for a pipe). A line feed inside `line`
// starts a new line with the same prefix. Lines that cannot be written are
// lost.
class StderrLogger final : public Logger {
 public:
  // Writes lines of level `least` and above. A negative `rank` is left out of
  // the prefix. The caller keeps `fd`.
  StderrLogger(LogLevel least, int rank, int fd = 2);

  bool Enabled(LogLevel level) const override { return level <= least_; }
  void Log(LogLevel level, const std::string& line) override;

 private:
  const LogLevel least_;
  const std::string prefix_;
  const int fd_;
};

}  // namespace gradientflow
