#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/communicator/calls.h"

// How ranks decide together. Each rank makes a claim: the values with which it
// would go on, or the reason why it cannot. All ranks see all claims and so
// come to the same conclusion. A rank that has to refuse still makes its claim,
// so that no other rank waits for it in vain.
namespace gradientflow {

// The part of a claim that says why a rank cannot go on.
struct Refusal {
  std::uint32_t code = 0;  // A StatusCode; 0 if it can go on.
  char why[444] = {};      // The text, ended by a zero.
};

// Makes the refusal for `why`. REQUIRES !why.ok(); OK refuses nothing.
Refusal RefusalOf(const Status& why);
// Returns OK, or the refusal as a status whose message begins with `text`.
Status StatusOf(const Refusal& refusal, const std::string& text);

// Where claims are gathered. `place` says which claims are compared with each
// other; an allgather of a caller never matches them.
struct ClaimArgs {
  Calls* calls = nullptr;
  GroupId group = 0;
  int size = 1;
  std::uint64_t place = 0;
};
// Allgathers `bytes` bytes of each rank: `mine` has `bytes` bytes, `all` has
// size * `bytes`.
Status GatherBytes(const ClaimArgs& args, const void* mine, void* all,
                   std::size_t bytes);

// Returns the claims of all ranks, by rank. A Claim is plain data of 512 bytes.
template <typename Claim>
Result<std::vector<Claim>> GatherClaims(const ClaimArgs& args,
                                        const Claim& mine) {
  static_assert(sizeof(Claim) == 512, "ranks exchange it as it is");
  std::vector<Claim> all(static_cast<std::size_t>(args.size), mine);
  GF_RETURN_IF_ERROR(GatherBytes(args, &mine, all.data(), sizeof(Claim)));
  return all;
}

}  // namespace gradientflow
