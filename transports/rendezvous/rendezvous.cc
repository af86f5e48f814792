#include "transports/rendezvous/rendezvous.h"

#include <string_view>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/rendezvous/ways.h"

namespace gradientflow {

Bits256 JobSecret(std::string_view token, std::string_view run) {
  return HmacSha256(token, StrCat("gradientflow job ", run));
}

namespace {

Result<std::string> IntroduceTo(int rank, const std::vector<std::string>& cards,
                                const Introduce& introduce) {
  Result<std::vector<std::string>> texts = introduce(cards, {rank});
  if (!texts.ok()) return texts.status();
  return std::move(texts.value().front());
}

}  // namespace

Result<std::string> Meet(const RendezvousOptions& options,
                         const std::string& my_card, const Introduce& introduce,
                         const Clock& clock) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("rendezvous: expected a rank from 0 to size - 1, "
                         "seen rank ",
                         options.rank, " of ", options.size));
  }
  if (my_card.size() > kMaxCardBytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("rendezvous: expected at most ", kMaxCardBytes,
                         " bytes of card, seen ", my_card.size()));
  }
  if (options.size == 1) return IntroduceTo(0, {my_card}, introduce);
  const rendezvous::Call call = {options, my_card, introduce, clock};
  constexpr std::string_view kFile = "file://";
  if (options.address.starts_with(kFile)) {
    const Result<std::vector<std::string>> cards =
        rendezvous::MeetInFiles(call, options.address.substr(kFile.size()));
    if (!cards.ok()) return cards.status();
    auto text = IntroduceTo(options.rank, cards.value(), introduce);
    if (!text.ok() && options.watch != nullptr) {
      (*options.watch)->Leave(text.status());
      *options.watch = nullptr;
    }
    return text;
  }
  return options.rank == 0 ? rendezvous::ServeTcp(call)
                           : rendezvous::JoinTcp(call);
}

}  // namespace gradientflow
