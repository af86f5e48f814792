#pragma once

#include <utility>

#include "gradientflow/base/fork.h"

namespace gradientflow {

// Owns a file descriptor in this process alone: it is closed in forked
// children.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {
    if (fd_ >= 0) CloseInForks(fd_);
  }
  Fd(Fd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), process_(other.process_) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
      process_ = other.process_;
    }
    return *this;
  }
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset() {
    // In a forked child the number is free, or belongs to another descriptor.
    if (fd_ >= 0 && !process_.forked()) CloseHere(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  ProcessMark process_;
};

}  // namespace gradientflow
