#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/communicator/calls.h"

// How ranks decide together: each brings a claim (what it would go on with, or
// why it cannot), all see all claims, and so come to the same verdict. No rank
// waits for one that was refused by itself.
namespace gradientflow {

// Part of a claim: why a rank cannot go on.
struct Refusal {
  std::uint32_t code = 0;  // StatusCode; 0: it can.
  char why[444] = {};      // The text, ended by a zero.
};

// REQUIRES !why.ok(), or nothing is refused.
Refusal RefusalOf(const Status& why);
// OK, or the refusal; `text` is what the message begins with.
Status StatusOf(const Refusal& refusal, const std::string& text);

// The claims of all ranks of a group, by rank. Which claims are compared
// depends on `place`: no caller's allgather passes for them.
struct ClaimArgs {
  Calls* calls = nullptr;
  GroupId group = 0;
  int size = 1;
  std::uint64_t place = 0;
};
// `mine` and `all` are of `bytes` and size * `bytes`.
Status GatherBytes(const ClaimArgs& args, const void* mine, void* all,
                   std::size_t bytes);

// `Claim` is plain bytes, 512 of them.
template <typename Claim>
Result<std::vector<Claim>> GatherClaims(const ClaimArgs& args,
                                        const Claim& mine) {
  static_assert(sizeof(Claim) == 512, "ranks exchange it as it is");
  std::vector<Claim> all(static_cast<std::size_t>(args.size), mine);
  GF_RETURN_IF_ERROR(GatherBytes(args, &mine, all.data(), sizeof(Claim)));
  return all;
}

}  // namespace gradientflow
