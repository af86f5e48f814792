#include "tests/communicator/placed_transport.h"

#include <utility>
#include <vector>

#include "gradientflow/collectives/placed_layout.h"
#include "transports/fabric.h"
#include "transports/poller.h"

namespace gradientflow::testing {

std::shared_ptr<PlacesNetwork> PlacesNetworkFor(const Options& options,
                                                std::uint64_t seed) {
  return std::make_shared<PlacesNetwork>(
      options.size,
      PlacedSlotBytes(options.size, options.segment_bytes,
                      options.segments_in_flight),
      seed);
}

Result<Transport> PlacedTransport(const std::shared_ptr<InprocGroup>& group,
                                  const std::shared_ptr<PlacesNetwork>& network,
                                  const Options& options, const Clock& clock) {
  struct Kept {
    std::shared_ptr<InprocGroup> group;
    std::shared_ptr<PlacesNetwork> network;
    std::unique_ptr<PlacedLinkEvents> events;
  };
  Result<std::unique_ptr<Poller>> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  Transport transport;
  transport.fabric =
      std::make_unique<Fabric>(options.rank, options.size, clock,
                               std::move(poller).value(), FabricOptions());
  ThreadPlaces& places = network->places(options.rank);
  const auto kept = std::make_shared<Kept>();
  kept->group = group;
  kept->network = network;
  kept->events = std::make_unique<PlacedLinkEvents>(*transport.fabric, places);
  Result<std::vector<std::unique_ptr<Link>>> links = group->Connect(
      options.rank, &transport.fabric->poller(), kept->events.get());
  if (!links.ok()) return links.status();
  transport.fabric->Connect(WithPlaces(std::move(links).value(), places));
  transport.keep_alive.push_back(kept);
  transport.places = &places;
  transport.places_all = true;
  transport.group.rank = options.rank;
  transport.group.size = options.size;
  transport.group.all_place = options.size > 1;
  transport.group.topology.host.assign(static_cast<std::size_t>(options.size),
                                       0);
  return transport;
}

}  // namespace gradientflow::testing
