#include "transports/tcp/door.h"

#include <poll.h>

#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// Connections accepted in one call, and how long to leave the listener alone
// when one could not be accepted.
constexpr int kAtOnce = 16;
constexpr std::chrono::milliseconds kPause(50);

}  // namespace

void Door::AcceptSome(const Socket& listener, Clock::Time now, Guests* guests) {
  bool made_room = false;
  for (int i = 0; i < kAtOnce; ++i) {
    // Without a free descriptor accept() fails even if nobody waits.
    pollfd waiting = {listener.fd(), POLLIN, 0};
    if (::poll(&waiting, 1, 0) != 1) return;
    Result<Socket> accepted = Accept(listener);
    if (!accepted.ok()) {
      trouble_ = accepted.status().message();
      if (made_room || !guests->DropOldestStranger()) {
        closed_until_ = now + kPause;
        return;
      }
      made_room = true;
      continue;
    }
    if (!accepted.value().valid()) return;
    if (guests->full() && !guests->DropOldestStranger()) continue;
    guests->Admit(std::move(accepted).value());
    // There was room for just one connection. It must be heard before it has to
    // make room in turn.
    if (made_room) return;
  }
}

std::string Door::Trouble() const {
  if (trouble_.empty()) return "";
  return StrCat("; not all that knocked could be let in: ", trouble_);
}

}  // namespace gradientflow
