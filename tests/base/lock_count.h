#pragma once

#include <cstdint>

// Counts the locks that the code under test takes. A test that links this has
// another pthread_mutex_lock(), which std::mutex calls.
namespace gradientflow::testing {

// Locks of this thread so far.
std::uint64_t LocksTaken();

}  // namespace gradientflow::testing
