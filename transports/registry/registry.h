#pragma once

#include <span>
#include <string>
#include <string_view>

#include "transports/endpoint.h"

namespace gradientflow {

// All transports that a job may use, best first. Two ranks are linked by the
// first one that both have opened and by which they reach each other. The last
// one reaches every rank.
std::span<const TransportKind* const> Transports();

// Returns null if no transport has that name; "auto" is not one.
const TransportKind* FindTransport(std::string_view name);

// Returns "auto, shm, rdma or tcp": the values of the setting `fabric`. Static
// storage.
std::string_view TransportNames();

// Returns the id by which ranks decide who shares memory: those with equal ids
// do. It is the setting `host_id`, or, if that is empty, what the transport
// that shares memory finds: equal in processes of one user, in one network and
// user namespace of a machine since it has started.
std::string HostId(const std::string& setting);

}  // namespace gradientflow
