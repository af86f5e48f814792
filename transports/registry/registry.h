#pragma once

#include <span>
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

}  // namespace gradientflow
