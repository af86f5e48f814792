#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow {

// What a rank tells all others at the rendezvous.
struct Card {
  std::string host_id;
  std::string tcp_address;  // Empty: no TCP.
  std::string shm_address;  // Empty: shares no memory.
  std::uint64_t nonce = 0;
  std::string agreement;  // Lines "name=value", equal on all ranks.
  Status failure;         // Why the rank cannot be linked to, if so.
};

std::string EncodeCard(const Card& card);
// kDataLoss if `text` is no card; the message names `rank`.
Result<Card> DecodeCard(int rank, const std::string& text);

// kInvalidArgument names the first line that differs from rank 0's, and the
// rank.
Status CheckAgreement(const std::vector<Card>& cards);

// The failure of the first rank that has one, with its number.
Status CheckFailures(const std::vector<Card>& cards);

// A number that all ranks of this job compute alike and no other job does.
std::uint64_t SessionKey(const std::vector<Card>& cards);

}  // namespace gradientflow
