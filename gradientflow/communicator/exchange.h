#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"

namespace gradientflow {

// How ranks find each other where a framework brings a store of its own: gives
// `mine` (opaque bytes, 64 KiB at most) to all ranks and returns all ranks', by
// rank. Blocks until then; runs on the thread that opens the session.
using Exchange =
    std::function<Result<std::vector<std::string>>(const std::string& mine)>;

}  // namespace gradientflow
