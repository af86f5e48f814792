#include "gradientflow/communicator/inproc.h"

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/communicator/core.h"
#include "transports/registry/registry.h"

namespace gradientflow {
namespace {

// Has no state, and outlives every session.
const SteadyClock& SharedClock() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace

Result<std::shared_ptr<Communicator>> OpenOver(Transport transport,
                                               const Options& options,
                                               std::shared_ptr<Device> device) {
  Result<CommunicatorCore::Args> parts = CommunicatorCore::MakeArgs(options);
  if (!parts.ok()) return parts.status();
  parts.value().device = std::move(device);
  Result<std::unique_ptr<CommunicatorCore>> core =
      CommunicatorCore::Create(std::move(parts).value(), std::move(transport));
  if (!core.ok()) return core.status();
  return std::make_shared<Communicator>(std::move(core).value());
}

Result<std::shared_ptr<Communicator>> OpenInProcess(
    const std::shared_ptr<InprocGroup>& group, const Options& options,
    std::shared_ptr<Device> device) {
  Options adapted = options;
  adapted.size = group->size();
  adapted.rendezvous =
      "file:///in-process";  // Never looked up: the ranks have met.
  if (adapted.rank < 0 || adapted.rank >= adapted.size) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("rank ", adapted.rank, " of ", adapted.size));
  }
  Result<std::unique_ptr<Poller>> poller = Poller::Create();
  if (!poller.ok()) return poller.status();
  FabricOptions fabric;
  fabric.heartbeat_timeout = FromSeconds(options.heartbeat_timeout_seconds);
  Transport transport;
  transport.fabric =
      std::make_unique<Fabric>(adapted.rank, adapted.size, SharedClock(),
                               std::move(poller).value(), fabric);
  Result<std::vector<std::unique_ptr<Link>>> links = group->Connect(
      adapted.rank, &transport.fabric->poller(), transport.fabric.get());
  if (!links.ok()) return links.status();
  transport.fabric->Connect(std::move(links).value());
  transport.keep_alive.push_back(group);
  transport.group.rank = adapted.rank;
  transport.group.size = adapted.size;
  transport.group.topology.host.assign(static_cast<std::size_t>(adapted.size),
                                       0);
  const TransportKind* const only = FindTransport(adapted.fabric);
  const bool shares = only == nullptr || only->host_id != nullptr;
  if (shares && adapted.size > 1) {
    transport.arena = &group->arena(adapted.rank);
    transport.group.all_share = transport.group.hosts_share = true;
  }
  return OpenOver(std::move(transport), adapted, std::move(device));
}

}  // namespace gradientflow
