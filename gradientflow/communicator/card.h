#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "transports/endpoint.h"

namespace gradientflow {

// What a rank tells all other ranks at the rendezvous.
struct Card {
  std::string host_id;
  // Endpoint::address() of each transport that the rank has opened, by name.
  std::map<std::string, std::string> addresses;
  Bits256 nonce = {};
  std::size_t descriptors = 0;  // How many the rank may still open.
  std::string agreement;        // Lines "name=value", equal on all ranks.
  Status failure;               // Not OK: why it cannot be linked to.
};

// Empty if the rank has not opened that transport.
std::string AddressOf(const Card& card, const TransportKind& kind);

std::string EncodeCard(const Card& card);
// Returns kDataLoss with the name of `rank` if `text` is not a card.
Result<Card> DecodeCard(int rank, const std::string& text);

// Returns kInvalidArgument with the first line that differs from rank 0's, and
// the rank.
Status CheckAgreement(const std::vector<Card>& cards);

// Returns why a rank with the card `text` has no place beside rank 0: as above.
Status CheckBesideFirst(const Card& first, int rank, const std::string& text);

// Returns the failure of the card of `rank` with that number, or OK.
Status CheckFailure(int rank, const Card& card);
// Returns the failure of the first rank that has one, with that rank's number.
Status CheckFailures(const std::vector<Card>& cards);

}  // namespace gradientflow
