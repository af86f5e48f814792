#pragma once

#include <span>
#include <string_view>

#include "transports/endpoint.h"

namespace gradientflow {

// Every transport that a job may use, best first: two ranks are linked by the
// first of them that both have opened and that reaches from one to the other.
// The last one reaches every rank.
std::span<const TransportKind* const> Transports();

// Null: there is none of that name, "auto" among others.
const TransportKind* FindTransport(std::string_view name);

// "auto, shm or tcp": what the setting `fabric` may be. Static storage.
std::string_view TransportNames();

}  // namespace gradientflow
