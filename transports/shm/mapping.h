#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"

namespace gradientflow {

// A mapped memfd: shared memory without a name, so that nothing is left behind
// however its users die. Pages appear when they are touched. Immutable. A
// forked child has a private copy of this process's own memory, and nothing of
// a peer's.
class Mapping {
 public:
  // Returns a new, zeroed mapping. `bytes` is a multiple of 4096. The size is
  // sealed.
  static Result<std::shared_ptr<Mapping>> Create(std::size_t bytes);

  // Maps the memory of a peer. Returns kDataLoss unless it is a memfd of
  // exactly `bytes` that cannot shrink: to touch a truncated mapping would kill
  // this process.
  static Result<std::shared_ptr<Mapping>> FromPeer(const Fd& memory,
                                                   std::uint64_t bytes);

  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // -1 for the memory of a peer.

  // Gives the pages back to the kernel. They read as zeros afterwards.
  void Discard(std::uint64_t offset, std::size_t bytes) const;

 private:
  Mapping(Fd fd, std::byte* data, std::size_t bytes);

  const ProcessMark process_;
  const Fd fd_;
  std::byte* const data_;
  const std::size_t bytes_;
};

}  // namespace gradientflow
