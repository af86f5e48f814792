#pragma once

#include "transports/endpoint.h"

namespace gradientflow {

// Queue pairs to other hosts, where there are RDMA devices: InfiniBand, RoCE.
extern const TransportKind kRdmaTransport;

}  // namespace gradientflow
