#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gradientflow {

// What this rank has written into the memory of its peers, by all links of one
// transport together, since they were made.
struct RemoteWrites {
  std::uint64_t data = 0;     // Writes with bytes of messages,
  std::uint64_t control = 0;  // and those that only ask or tell something.
  std::uint64_t bytes = 0;    // Of messages.
  // How often the card has sent something again, as it counts that itself: for
  // all programs that use its port. Unset if it does not.
  std::optional<std::uint64_t> retries;

  // What has come since `before`, which was counted earlier by the same links.
  RemoteWrites Since(const RemoteWrites& before) const;
  // "6 data writes, 0 control writes, 24576 bytes, 0 retries"
  std::string ToString() const;
};

// Counts them. NOT thread-safe: asked by the thread that drives the links.
class WriteCounter {
 public:
  virtual ~WriteCounter() = default;
  // Takes some microseconds, since the kernel is asked for the retries.
  virtual RemoteWrites Count() = 0;
};

}  // namespace gradientflow
