#pragma once

#include <cstdint>
#include <memory>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/communicator/transport.h"
#include "gradientflow/config/options.h"
#include "tests/transports/thread_places.h"
#include "transports/inproc/create.h"

namespace gradientflow::testing {

// A network for ranks with such options.
std::shared_ptr<PlacesNetwork> PlacesNetworkFor(const Options& options,
                                                std::uint64_t seed);

// Rank options.rank among threads that send each other messages and write into
// each other's memory. To be passed to OpenOver(). `clock` outlives it.
Result<Transport> PlacedTransport(const std::shared_ptr<InprocGroup>& group,
                                  const std::shared_ptr<PlacesNetwork>& network,
                                  const Options& options, const Clock& clock);

}  // namespace gradientflow::testing
