#include "data_parallel_used.h"

#include <utility>

namespace gft {

UsedAnywhere::UsedAnywhere(gf_session* session,
                           const std::vector<uint8_t>& here)
    : session_(session), count_(here.size()), bits_((count_ + 7) / 8) {
  for (size_t i = 0; i < count_; ++i) {
    bits_[i / 8] |= static_cast<uint8_t>((here[i] != 0 ? 1 : 0) << (i % 8));
  }
  if (gf_size(session_) == 1) return;
  Check(gf_allreduce_start(session_, bits_.data(), bits_.size(), GF_UINT8,
                           GF_BIT_OR, &ticket_),
        "agreeing on used parameters");
  asked_ = true;
}

UsedAnywhere::~UsedAnywhere() {
  // Left alone by a step that failed, and the job with it: does not wait long.
  if (asked_) gf_wait(session_, ticket_);
}

std::vector<uint8_t> UsedAnywhere::Get() {
  if (std::exchange(asked_, false)) {
    Check(gf_wait(session_, ticket_), "agreeing on used parameters");
  }
  std::vector<uint8_t> used(count_);
  for (size_t i = 0; i < count_; ++i) used[i] = bits_[i / 8] >> (i % 8) & 1;
  return used;
}

}  // namespace gft
