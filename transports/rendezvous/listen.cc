#include "transports/rendezvous/listen.h"

#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/tcp/addresses.h"

namespace gradientflow::rendezvous {

Result<std::vector<Socket>> ListenForRanks(const std::string& address) {
  const Result<HostPort> where = ParseHostPort(address);
  if (!where.ok()) return where.status();
  Result<std::vector<SocketAddress>> resolved = Resolve(where.value());
  if (!resolved.ok()) return resolved.status();
  std::vector<SocketAddress> places = std::move(resolved).value();
  const bool by_name = !SocketAddress::Parse(address).has_value();
  if (by_name && where.value().host != "localhost" &&
      std::any_of(places.begin(), places.end(),
                  [](const SocketAddress& a) { return a.IsLoopback(); })) {
    // The host's own name resolves to its loopback. Peers know the host by its
    // other addresses.
    const std::string port = ":" + std::to_string(where.value().port);
    places = {*SocketAddress::Parse("0.0.0.0" + port),
              *SocketAddress::Parse("[::]" + port)};
  }
  std::vector<Socket> listeners;
  Status trouble;
  for (const SocketAddress& place : places) {
    Result<Socket> listener = ListenOn(place, 0);
    if (listener.ok()) {
      listeners.push_back(std::move(listener).value());
    } else if (trouble.ok() ||
               listener.status().code() == StatusCode::kFailedPrecondition) {
      trouble = listener.status();
    }
  }
  // If the port is taken at one address, peers might reach the process that
  // took it.
  if (!listeners.empty() && trouble.code() != StatusCode::kFailedPrecondition) {
    return listeners;
  }
  const bool scarce = trouble.code() == StatusCode::kResourceExhausted;
  return Status(
      scarce ? trouble.code() : StatusCode::kFailedPrecondition,
      StrCat("rendezvous: rank 0 ", trouble.message(),
             ". Expected a free port at an address of the host that rank 0 "
             "runs on, seen \"",
             address, "\""));
}

}  // namespace gradientflow::rendezvous
