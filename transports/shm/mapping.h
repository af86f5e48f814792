#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// A mapped memfd: shared memory without a name, so that nothing stays behind
// however its users die. Pages appear when touched. Immutable. A fork has a
// private copy of this process's own, and nothing of a peer's.
class Mapping {
 public:
  // New and zeroed; `bytes` is a multiple of 4096. The size is sealed.
  static Result<std::shared_ptr<Mapping>> Create(std::size_t bytes);

  // A peer's. kDataLoss unless it is a memfd of exactly `bytes` that can no
  // longer shrink: touching a truncated mapping would kill this process.
  static Result<std::shared_ptr<Mapping>> FromPeer(const Fd& memory,
                                                   std::uint64_t bytes);

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // -1 in a peer's.

  // Gives the pages back to the kernel; they read as zeros from now on.
  void Discard(std::uint64_t offset, std::size_t bytes) const;

 private:
  Mapping(Fd fd, std::byte* data, std::size_t bytes);

  const ProcessMark process_;
  const Fd fd_;
  std::byte* const data_;
  const std::size_t bytes_;
};

}  // namespace gradientflow
