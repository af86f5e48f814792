#include "transports/rendezvous/listen.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/addresses.h"

namespace gradientflow::rendezvous {
namespace {

std::vector<SocketAddress> AllOfThisHost(std::uint16_t port) {
  std::vector<SocketAddress> places = {AnyAddress(AF_INET),
                                       AnyAddress(AF_INET6)};
  for (SocketAddress& place : places) place.SetPort(port);
  return places;
}

// Listens where it can. `trouble` is why it cannot elsewhere.
std::vector<Socket> ListenAt(const std::vector<SocketAddress>& places,
                             Status* trouble) {
  std::vector<Socket> sockets;
  for (const SocketAddress& place : places) {
    Result<Socket> listener = ListenOn(place, 0);
    if (listener.ok()) {
      sockets.push_back(std::move(listener).value());
    } else if (trouble->ok() ||
               listener.status().code() == StatusCode::kFailedPrecondition) {
      *trouble = listener.status();
    }
  }
  // If the port is taken at one address, peers might reach the process that
  // took it.
  if (trouble->code() == StatusCode::kFailedPrecondition) sockets.clear();
  return sockets;
}

}  // namespace

Result<Listeners> ListenForRanks(const std::string& address) {
  const Result<HostPort> where = ParseHostPort(address);
  if (!where.ok()) return where.status();
  Result<std::vector<SocketAddress>> resolved = Resolve(where.value());
  if (!resolved.ok()) return resolved.status();
  std::vector<SocketAddress> places = std::move(resolved).value();
  const bool by_name = !SocketAddress::Parse(address).has_value();
  // Ranks may come to such an address without a token.
  const bool closed = IsOfThisHostOnly(address);
  if (by_name && !closed &&
      std::any_of(places.begin(), places.end(),
                  [](const SocketAddress& a) { return a.IsLoopback(); })) {
    places = AllOfThisHost(where.value().port);
  }
  Listeners listeners;
  Status trouble;
  listeners.sockets = ListenAt(places, &trouble);
  if (listeners.sockets.empty() && !closed &&
      trouble.code() == StatusCode::kUnavailable) {
    listeners.note =
        StrCat("; ", address,
               " is no address of rank 0's host, so it listened at "
               "all of its own");
    trouble = Status();
    listeners.sockets = ListenAt(AllOfThisHost(where.value().port), &trouble);
  }
  if (!listeners.sockets.empty()) return listeners;
  const bool scarce = trouble.code() == StatusCode::kResourceExhausted;
  return Status(scarce ? trouble.code() : StatusCode::kFailedPrecondition,
                StrCat("rendezvous: rank 0 ", trouble.message(),
                       ". Expected a free port, seen \"", address, "\""));
}

}  // namespace gradientflow::rendezvous
