#pragma once

#include <cstdint>
#include <vector>

#include "library.h"

namespace gft {

// Asks all ranks which tensors any of them used, in a message of one bit per
// tensor that travels beside the last gradients of a step. All ranks ask.
class UsedAnywhere {
 public:
  // here[i]: whether this rank used tensor i. The caller keeps `comm` in use
  // for the lifetime of this object, so that the message ends even if the
  // session is closing. Throws.
  UsedAnywhere(gf_comm* comm, const std::vector<uint8_t>& here);
  // Waits for the end of the message, however the step ended.
  ~UsedAnywhere();
  UsedAnywhere(const UsedAnywhere&) = delete;
  UsedAnywhere& operator=(const UsedAnywhere&) = delete;

  // Waits for the answer: whether here[i] is true on any rank. May be called
  // once. Throws.
  std::vector<uint8_t> Get();

 private:
  gf_comm* const comm_;
  const size_t count_;
  std::vector<uint8_t> bits_;
  uint64_t ticket_ = 0;
  bool asked_ = false;
};

}  // namespace gft
