#pragma once

namespace gradientflow::testing {

// While it exists, no file is locked, nor shown as locked, as on some file
// systems. Processes that are forked meanwhile inherit that. A test that links
// this has another fcntl().
class NoLocks {
 public:
  NoLocks();
  ~NoLocks();
  NoLocks(const NoLocks&) = delete;
  NoLocks& operator=(const NoLocks&) = delete;
};

}  // namespace gradientflow::testing
