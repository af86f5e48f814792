#include "gradientflow/communicator/introduction.h"

#include <charconv>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/card.h"
#include "gradientflow/communicator/neighbours.h"
#include "kernels/kernels.h"
#include "transports/registry/registry.h"

namespace gradientflow {
namespace {

using Addresses = std::map<std::string, std::map<int, std::string>>;

// "3*2,1" stands for 3, 3, 1: ranks of one host mostly follow each other.
std::string EncodeHosts(const std::vector<int>& hosts) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < hosts.size(); begin = end) {
    while (end < hosts.size() && hosts[end] == hosts[begin]) ++end;
    text += StrCat(begin == 0 ? "" : ",", hosts[begin]);
    if (end - begin > 1) text += StrCat("*", end - begin);
  }
  return text;
}

// Takes a number below `limit` from the front of `text`.
std::optional<int> TakeNumber(int limit, std::string_view* text) {
  int number = 0;
  const auto read =
      std::from_chars(text->data(), text->data() + text->size(), number);
  if (read.ec != std::errc() || number < 0 || number >= limit) {
    return std::nullopt;
  }
  text->remove_prefix(static_cast<std::size_t>(read.ptr - text->data()));
  return number;
}

bool TakeSign(char sign, std::string_view* text) {
  if (!text->starts_with(sign)) return false;
  text->remove_prefix(1);
  return true;
}

std::optional<std::vector<int>> DecodeHosts(int size, std::string_view text) {
  std::vector<int> hosts;
  const auto room = [&] { return size - static_cast<int>(hosts.size()); };
  do {
    const std::optional<int> host = TakeNumber(size, &text);
    std::optional<int> count = 1;
    if (TakeSign('*', &text)) count = TakeNumber(size + 1, &text);
    if (!host || !count || *count > room()) return std::nullopt;
    hosts.insert(hosts.end(), static_cast<std::size_t>(*count), *host);
  } while (TakeSign(',', &text));
  if (!text.empty() || room() != 0) return std::nullopt;
  return hosts;
}

bool Reaches(const TransportKind& kind, const CallGroup& group, int rank,
             int peer) {
  const std::vector<int>& host = group.topology.host;
  return kind.host_id == nullptr ||
         (group.hosts_share && host[static_cast<std::size_t>(peer)] ==
                                   host[static_cast<std::size_t>(rank)]);
}

// Both ranks of a pair learn alike by which transports they can be linked:
// those that both have opened and that reach from one to the other.
Addresses AddressesFor(const CallGroup& group, const std::vector<Card>& cards,
                       int rank, bool needed) {
  Addresses addresses;
  for (const int peer : NeighboursOf(group, rank, needed)) {
    for (const TransportKind* kind : Transports()) {
      if (!Reaches(*kind, group, rank, peer) ||
          AddressOf(cards[static_cast<std::size_t>(rank)], *kind).empty()) {
        continue;
      }
      std::string address =
          AddressOf(cards[static_cast<std::size_t>(peer)], *kind);
      if (!address.empty()) addresses[kind->name][peer] = std::move(address);
    }
  }
  return addresses;
}

Status CheckReachable(const std::string& fabric, const CallGroup& group) {
  const TransportKind* const only = FindTransport(fabric);
  if (only == nullptr || only->host_id == nullptr || group.all_share) {
    return Status();
  }
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("fabric=", only->name, " needs all ranks on one host, at most ",
             kernels::kMaxParties,
             " of them, in one network namespace and by one user; of "
             "these ",
             group.size, " ranks some are elsewhere"));
}

std::vector<LocalPlace> LocalPlaces(const std::vector<Card>& cards) {
  std::map<std::string, int> ranks;
  std::vector<LocalPlace> places;
  for (const Card& card : cards) places.push_back({ranks[card.host_id]++, 0});
  for (std::size_t r = 0; r < cards.size(); ++r) {
    places[r].ranks = ranks[cards[r].host_id];
  }
  return places;
}

std::optional<LocalPlace> DecodeLocal(int size, std::string_view text) {
  const std::optional<int> rank = TakeNumber(size, &text);
  const bool of = TakeSign('/', &text);
  const std::optional<int> ranks = TakeNumber(size + 1, &text);
  if (!rank || !of || !ranks || !text.empty() || *rank >= *ranks) {
    return std::nullopt;
  }
  return LocalPlace{*rank, *ranks};
}

Bits256 MeetingOf(const std::vector<Card>& cards) {
  std::string nonces;
  for (const Card& card : cards) nonces += View(card.nonce);
  return HmacSha256("gradientflow meeting", nonces);
}

bool DecodeAddresses(int size, const nlohmann::json& json,
                     Addresses* addresses) {
  for (const auto& [kind, ranks] : json.items()) {
    if (!ranks.is_object()) return false;
    for (const auto& [rank, address] : ranks.items()) {
      std::string_view digits = rank;
      const std::optional<int> number = TakeNumber(size, &digits);
      if (!number || !digits.empty() || !address.is_string()) return false;
      (*addresses)[kind][*number] = address.get<std::string>();
    }
  }
  return true;
}

}  // namespace

Result<std::vector<std::string>> IntroduceRanks(
    const IntroduceArgs& args, const std::vector<std::string>& cards,
    const std::vector<int>& ranks) {
  std::vector<Card> decoded;
  for (std::size_t r = 0; r < cards.size(); ++r) {
    Result<Card> card = DecodeCard(static_cast<int>(r), cards[r]);
    if (!card.ok()) return card.status();
    decoded.push_back(std::move(card).value());
  }
  GF_RETURN_IF_ERROR(CheckFailures(decoded));
  GF_RETURN_IF_ERROR(CheckAgreement(decoded));
  const CallGroup group = GroupOf(0, decoded);
  GF_RETURN_IF_ERROR(CheckReachable(args.fabric, group));
  GF_RETURN_IF_ERROR(CheckDescriptors(group, decoded, args.lanes, args.needed));
  nlohmann::json json{{"hosts", EncodeHosts(group.topology.host)},
                      {"hosts_share", group.hosts_share},
                      {"without_memory", RankWithoutMemory(decoded)},
                      {"meeting", Hex(View(MeetingOf(decoded)))}};
  const std::vector<LocalPlace> places = LocalPlaces(decoded);
  std::vector<std::string> texts;
  for (const int rank : ranks) {
    const LocalPlace& place = places[static_cast<std::size_t>(rank)];
    json["local"] = StrCat(place.rank, "/", place.ranks);
    nlohmann::json& links = json["addresses"] = nlohmann::json::object();
    for (const auto& [kind, peers] :
         AddressesFor(group, decoded, rank, args.needed)) {
      for (const auto& [peer, address] : peers) {
        links[kind][std::to_string(peer)] = address;
      }
    }
    texts.push_back(json.dump());
  }
  return texts;
}

Result<Introduction> DecodeIntroduction(int size, const std::string& text) {
  const nlohmann::json json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto none = [&] {
    return Status(StatusCode::kDataLoss,
                  StrCat("rank 0 introduced the ranks by a text that makes no "
                         "sense: ",
                         text.substr(0, 80)));
  };
  // A field of another type gives a null, which is not what is expected.
  const auto field = [&](const char* name) {
    return json.is_object() ? json.value(name, nlohmann::json())
                            : nlohmann::json();
  };
  const nlohmann::json hosts = field("hosts");
  const nlohmann::json local = field("local");
  const nlohmann::json share = field("hosts_share");
  const nlohmann::json without = field("without_memory");
  const nlohmann::json meeting = field("meeting");
  const nlohmann::json addresses = field("addresses");
  if (!hosts.is_string() || !local.is_string() || !share.is_boolean() ||
      !without.is_number_integer() || !meeting.is_string() ||
      !addresses.is_object()) {
    return none();
  }
  Introduction introduction;
  auto by_rank = DecodeHosts(size, hosts.get<std::string>());
  const auto place = DecodeLocal(size, local.get<std::string>());
  const auto bits = BitsOf(meeting.get<std::string>());
  if (!by_rank || !place || !bits ||
      !DecodeAddresses(size, addresses, &introduction.addresses)) {
    return none();
  }
  introduction.hosts = *std::move(by_rank);
  introduction.local = *place;
  introduction.hosts_share = share.get<bool>();
  introduction.without_memory = without.get<int>();
  introduction.meeting = *bits;
  return introduction;
}

std::vector<std::string> Introduction::AddressesOf(
    const std::string& kind) const {
  std::vector<std::string> by_rank(hosts.size());
  const auto found = addresses.find(kind);
  if (found == addresses.end()) return by_rank;
  for (const auto& [rank, address] : found->second) {
    by_rank[static_cast<std::size_t>(rank)] = address;
  }
  return by_rank;
}

CallGroup GroupOf(int rank, const Introduction& introduction) {
  CallGroup group;
  group.rank = rank;
  group.size = static_cast<int>(introduction.hosts.size());
  group.topology.host = introduction.hosts;
  group.hosts_share = introduction.hosts_share;
  group.all_share = group.hosts_share && group.topology.IsOneHost();
  return group;
}

Bits256 SessionSecret(const Bits256& job, const Introduction& introduction) {
  return HmacSha256(View(job), StrCat("session ", View(introduction.meeting)));
}

}  // namespace gradientflow
