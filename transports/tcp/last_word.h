#pragma once

#include <optional>

#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Looks at a lane that is complete, for a rank that still waits for other
// lanes, and takes nothing from it. Returns OK if the peer has said nothing so
// far; an error if it has failed, with its own words if it told why; and
// nothing if it has said something else: then it has all its lanes, and will be
// heard by the link.
std::optional<Status> LastWord(const Socket& lane);

}  // namespace gradientflow
