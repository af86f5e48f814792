#pragma once

#include <cstdint>
#include <vector>

#include "library.h"

namespace gft {

// Asks all ranks which tensors one of them used, in a message of a bit each
// that travels beside a step's last gradients. On all ranks alike.
class UsedAnywhere {
 public:
  // here[i]: whether this rank used tensor i. `comm` is in use by the caller
  // for as long as this lives: the message ends even where it is closing.
  // Throws.
  UsedAnywhere(gf_comm* comm, const std::vector<uint8_t>& here);
  // Ends the message, however the step ended.
  ~UsedAnywhere();
  UsedAnywhere(const UsedAnywhere&) = delete;
  UsedAnywhere& operator=(const UsedAnywhere&) = delete;

  // Waits for the answer: here[i] of any rank. Once. Throws.
  std::vector<uint8_t> Get();

 private:
  gf_comm* const comm_;
  const size_t count_;
  std::vector<uint8_t> bits_;
  uint64_t ticket_ = 0;
  bool asked_ = false;
};

}  // namespace gft
