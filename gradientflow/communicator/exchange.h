#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow {

// How ranks find each other if a framework brings a store of its own. Gives
// `mine` (opaque bytes, at most 64 KiB) to all ranks and returns the bytes of
// all ranks, by rank. Blocks until all of them are there; runs on the thread
// that opens the session.
using Exchange =
    std::function<Result<std::vector<std::string>>(const std::string& mine)>;

}  // namespace gradientflow
