#include "gradientflow/session/state_claim.h"

#include <bit>
#include <string>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

float LossScaleOf(const StateClaim& claim) {
  return std::bit_cast<float>(
      static_cast<std::uint32_t>(claim.loss_scale_bits));
}

Status Differs(std::size_t rank, const std::string& how) {
  return {StatusCode::kInvalidArgument,
          StrCat("the ranks' states do not belong together: rank ", rank,
                 "'s is ", how)};
}

// Compares with the claim of rank 0.
Status Compare(std::size_t rank, const StateClaim& claim,
               const StateClaim& first) {
  if (claim.job != first.job) {
    return Differs(rank, "of another training run than rank 0's");
  }
  if (claim.step != first.step) {
    return Differs(rank, StrCat("of step ", claim.step, ", rank 0's of step ",
                                first.step));
  }
  if (claim.loss_scale_bits != first.loss_scale_bits) {
    return Differs(rank, StrCat("of loss scale ", LossScaleOf(claim),
                                ", rank 0's of ", LossScaleOf(first)));
  }
  if (claim.selection != first.selection) {
    return Differs(rank, "of another selection of chunks than rank 0's");
  }
  if (claim.momentum != first.momentum) {
    return Differs(rank,
                   "of another momentum than rank 0's: one was saved before an "
                   "update of the weights, the other after it, or the weights "
                   "had drifted apart");
  }
  return {};
}

}  // namespace

StateClaim ClaimOf(const SavedState& state) {
  StateClaim claim;
  claim.loss_scale_bits = std::bit_cast<std::uint32_t>(state.loss_scale);
  claim.job = state.job;
  claim.step = state.step;
  claim.selection = StateChecksum(state.selection);
  claim.momentum = StateChecksum(state.momentum);
  return claim;
}

Status CheckClaims(const std::vector<StateClaim>& claims) {
  for (std::size_t r = 0; r < claims.size(); ++r) {
    GF_RETURN_IF_ERROR(
        StatusOf(claims[r].refusal,
                 StrCat("no rank restores its state, for that of rank ", r,
                        " is refused: ")));
  }
  for (std::size_t r = 1; r < claims.size(); ++r) {
    GF_RETURN_IF_ERROR(Compare(r, claims[r], claims[0]));
  }
  return {};
}

}  // namespace gradientflow
