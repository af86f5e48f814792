#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/endpoint.h"

namespace gradientflow {

// What a rank tells all others at the rendezvous.
struct Card {
  std::string host_id;
  // Endpoint::address() of each transport that the rank has opened, by name.
  std::map<std::string, std::string> addresses;
  std::uint64_t nonce = 0;
  std::string agreement;  // Lines "name=value", equal on all ranks.
  Status failure;         // Why the rank cannot be linked to, if so.
};

// Empty if that rank has not opened that transport.
std::string AddressOf(const Card& card, const TransportKind& kind);

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
