#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "transports/endpoint.h"
#include "transports/link.h"
#include "transports/tcp/io_threads.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

struct SetUpArgs {
  const TransportOptions& options;
  const ConnectArgs& job;
  const std::vector<Socket>& listeners;  // Those of this rank's addresses.
  std::string address;                   // This rank's, for error messages.
  int rails = 1;                         // RailsIn() its addresses.
  std::shared_ptr<IoThreads> io;         // For the links; may be null.
};

// Endpoint::Connect() of TCP. It is enough if connections get through from one
// rank of a pair to the other. A peer whose process has ended, or that fails,
// ends it within a second, with an error that names the peer. On another host
// it takes some seconds if others have not connected either, or if the network
// says that its addresses refuse, and ConnectArgs::look does not know. With
// such a look, refusals count after two seconds.
Result<std::vector<std::unique_ptr<Link>>> SetUpLanes(const SetUpArgs& args);

}  // namespace gradientflow
