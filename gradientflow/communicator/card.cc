#include "gradientflow/communicator/card.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/agreement.h"
#include "transports/registry/registry.h"

namespace gradientflow {
namespace {

std::string Field(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>()
                                                   : std::string();
}

}  // namespace

std::string AddressOf(const Card& card, const TransportKind& kind) {
  const auto found = card.addresses.find(kind.name);
  return found == card.addresses.end() ? std::string() : found->second;
}

std::string EncodeCard(const Card& card) {
  nlohmann::json json{{"host_id", card.host_id},
                      {"nonce", Hex(View(card.nonce))},
                      {"descriptors", card.descriptors},
                      {"agreement", card.agreement},
                      {"failure", card.failure.message()},
                      {"failure_code", card.failure.code()}};
  for (const TransportKind* kind : Transports()) {
    json[kind->name] = AddressOf(card, *kind);
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<Card> DecodeCard(int rank, const std::string& text) {
  const nlohmann::json json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const std::optional<Bits256> nonce =
      json.is_object() ? BitsOf(Field(json, "nonce")) : std::nullopt;
  if (!nonce) {
    return Status(StatusCode::kDataLoss,
                  StrCat("rank ", rank, " joined with a card that is none: ",
                         text.substr(0, 80)));
  }
  Card card;
  card.host_id = Field(json, "host_id");
  for (const TransportKind* kind : Transports()) {
    card.addresses[kind->name] = Field(json, kind->name);
  }
  card.nonce = *nonce;
  const auto descriptors = json.find("descriptors");
  if (descriptors != json.end() && descriptors->is_number_unsigned()) {
    card.descriptors = descriptors->get<std::size_t>();
  }
  card.agreement = Field(json, "agreement");
  const auto code = json.find("failure_code");
  if (code != json.end() && code->is_number_unsigned() && *code != 0U) {
    const auto known = std::min(code->get<std::uint64_t>(), kMaxStatusCode);
    card.failure =
        Status(static_cast<StatusCode>(known), Field(json, "failure"));
  }
  return card;
}

namespace {

Status CheckPair(const Card& first, int rank, const Card& card) {
  if (card.agreement == first.agreement) return Status();
  return Status(StatusCode::kInvalidArgument,
                FirstDifference({0, first.agreement}, {rank, card.agreement}));
}

}  // namespace

Status CheckAgreement(const std::vector<Card>& cards) {
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    GF_RETURN_IF_ERROR(
        CheckPair(cards[0], static_cast<int>(rank), cards[rank]));
  }
  return Status();
}

Status CheckBesideFirst(const Card& first, int rank, const std::string& text) {
  const Result<Card> card = DecodeCard(rank, text);
  return card.ok() ? CheckPair(first, rank, card.value()) : card.status();
}

Status CheckFailure(int rank, const Card& card) {
  if (card.failure.ok()) return Status();
  return Status(
      card.failure.code(),
      StrCat("rank ", rank, " cannot join: ", card.failure.message()));
}

Status CheckFailures(const std::vector<Card>& cards) {
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    GF_RETURN_IF_ERROR(CheckFailure(static_cast<int>(rank), cards[rank]));
  }
  return Status();
}

}  // namespace gradientflow
