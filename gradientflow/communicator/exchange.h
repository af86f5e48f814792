#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow {

// How ranks find each other if a framework has a store of its own. Gives `mine`
// (opaque bytes, at most 64 KiB) to all ranks and returns the bytes of all
// ranks, by rank. Called once, on the thread that opens the communicator, and
// blocks until all bytes are there. An error makes opening fail on this rank.
using Exchange =
    std::function<Result<std::vector<std::string>>(const std::string& mine)>;

}  // namespace gradientflow
