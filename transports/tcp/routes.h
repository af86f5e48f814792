#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/tcp/addresses.h"
#include "transports/tcp/interfaces.h"

// How ranks with several networks find the best ways to each other. A rank
// publishes its addresses with the rates of their interfaces:
// "10.0.0.2:4321@25000,10.1.0.2:4321@25000". The rank that connects takes, for
// each address, the lower of that rate and the rate of the interface by which
// its own kernel would send there. Addresses with more than a quarter of the
// best rate, or all of them if no rate is known, are rails: the pair's data
// lanes go through all of them, and rails.h gives each rail as many messages as
// it turns out to carry.
namespace gradientflow {

// Each is the inverse of the other, except that an address without a rate gets
// kUnknownRate. kInvalidArgument names the part that is wrong.
std::string JoinRated(const std::vector<RatedAddress>& addresses);
Result<std::vector<RatedAddress>> SplitRated(std::string_view text);

// Lowers the rates of a peer's addresses to those of this rank's routes to
// them, and sorts by rate, best first. An address to which the kernel knows no
// route comes last. A single address stays as it is. Sends nothing.
void RateRoutes(const std::vector<InterfaceAddress>& interfaces,
                std::vector<RatedAddress>* peer);

// How many rails there are. `addresses` is not empty, and best first.
int RailsIn(const std::vector<RatedAddress>& addresses);

// Returns the rate of all rails together in megabits per second, roughly; 0 if
// their rates are unknown. `addresses` is not empty, and best first.
int LineRateOf(const std::vector<RatedAddress>& addresses);

// The addresses in the order in which to try them for a lane: data lane `lane`,
// from 1, begins with its rail; lane 0, of control messages, with the best.
std::vector<SocketAddress> RouteOfLane(
    const std::vector<RatedAddress>& addresses, int lane);

}  // namespace gradientflow
