#include "gradientflow/observe/stderr_logger.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string_view>

namespace gradientflow {
namespace {

constexpr std::array<std::string_view, 4> kLetters = {
    " E: ", " W: ", " I: ", " D: "};

}  // namespace

StderrLogger::StderrLogger(LogLevel least, int rank, int fd)
    : least_(least),
      prefix_(rank < 0 ? "gradientflow"
                       : "gradientflow[rank " + std::to_string(rank) + "]"),
      fd_(fd) {}

void StderrLogger::Log(LogLevel level, const std::string& line) {
  if (!Enabled(level)) return;
  const auto letter = kLetters[static_cast<std::size_t>(level)];
  std::string text;
  std::string_view rest = line;
  while (true) {
    const std::size_t end = rest.find('\n');
    text.append(prefix_).append(letter).append(rest.substr(0, end)) += '\n';
    if (end == rest.npos || end + 1 == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t wrote = ::write(fd_, left.data(), left.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return;
    left.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace gradientflow
