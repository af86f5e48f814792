#include "tests/faults/board.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace gradientflow::faults {

std::int64_t NowNs() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void Pause(std::chrono::nanoseconds time) {
  const auto ns = std::max<std::int64_t>(time.count(), 0);
  const timespec limit = {static_cast<time_t>(ns / 1000000000),
                          static_cast<long>(ns % 1000000000)};
  ppoll(nullptr, 0, &limit, nullptr);
}

void RankReport::End(std::int64_t now_ns, const Status& status) {
  const std::string said = status.ok() ? "" : status.message();
  const std::size_t bytes = std::min(said.size(), kTextBytes - 1);
  std::memcpy(text, said.data(), bytes);
  text[bytes] = '\0';
  code.store(status.code());
  ended_ns.store(now_ns);
}

}  // namespace gradientflow::faults
