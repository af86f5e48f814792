#include "data_parallel_used.h"

#include <utility>

namespace gft {

UsedAnywhere::UsedAnywhere(gf_comm* comm, const std::vector<uint8_t>& here)
    : comm_(comm), count_(here.size()), bits_((count_ + 7) / 8) {
  for (size_t i = 0; i < count_; ++i) {
    bits_[i / 8] |= static_cast<uint8_t>((here[i] != 0 ? 1 : 0) << (i % 8));
  }
  if (gf_comm_size(comm_) == 1) return;
  gf_call call;
  gf_call_init(&call);
  call.output = bits_.data();
  call.count = bits_.size();
  call.dtype = GF_UINT8;
  call.op = GF_BIT_OR;
  Check(gf_comm_start(comm_, &call, nullptr, nullptr, &ticket_),
        "agreeing on used parameters");
  asked_ = true;
}

UsedAnywhere::~UsedAnywhere() {
  // A step that failed has not fetched the answer. The job has failed with it,
  // so this wait is short.
  if (asked_) gf_comm_wait(comm_, ticket_, -1);
}

std::vector<uint8_t> UsedAnywhere::Get() {
  if (std::exchange(asked_, false)) {
    Check(gf_comm_wait(comm_, ticket_, -1), "agreeing on used parameters");
  }
  std::vector<uint8_t> used(count_);
  for (size_t i = 0; i < count_; ++i) used[i] = bits_[i / 8] >> (i % 8) & 1;
  return used;
}

}  // namespace gft
