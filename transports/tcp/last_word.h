#pragma once

#include <optional>

#include "gradientflow/base/status.h"
#include "transports/tcp/socket.h"

namespace gradientflow {

// Looks at a lane that is complete, for a rank that still waits for other
// lanes, and reads nothing from it. Returns OK if the peer has sent nothing so
// far; an error if the peer has failed, with its own text if it sent one, or
// else with `*wordless` set; and nullopt if it has sent anything else: then it
// has all its lanes, and the link will read that.
std::optional<Status> LastWord(const Socket& lane, bool* wordless);

}  // namespace gradientflow
