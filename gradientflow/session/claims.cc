#include "gradientflow/session/claims.h"

#include <algorithm>
#include <cstring>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Refusal RefusalOf(const Status& why) {
  Refusal refusal;
  refusal.code = static_cast<std::uint32_t>(why.code());
  const std::string& text = why.message();
  std::memcpy(refusal.why, text.data(),
              std::min(text.size(), sizeof(refusal.why) - 1));
  return refusal;
}

Status StatusOf(const Refusal& refusal, const std::string& text) {
  if (refusal.code == 0) return Status();
  const bool known =
      refusal.code <= static_cast<std::uint32_t>(StatusCode::kDataLoss);
  const std::string why(refusal.why, strnlen(refusal.why, sizeof(refusal.why)));
  return {known ? static_cast<StatusCode>(refusal.code) : StatusCode::kInternal,
          text + why};
}

Status GatherBytes(const ClaimArgs& args, const void* mine, void* all,
                   std::size_t bytes) {
  if (args.size == 1) return Status();
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.input = mine;
  call.output = all;
  call.count = bytes;
  call.dtype = call.wire = DType::kInt8;
  call.place = args.place;
  call.group = args.group;
  return args.calls->Run(call);
}

}  // namespace gradientflow
