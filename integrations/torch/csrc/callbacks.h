#pragma once

#include <functional>

namespace gft {

// Runs callbacks that may wait for other operations, or for Python's lock, and
// so must not run on a thread that drives a session. A task never waits for
// another to end: there are as many threads as tasks are waiting for something,
// and one idle one after the first.
void RunLater(std::function<void()> task);

// Runs what is left and ends the threads; later tasks run at once, on the
// caller's. Before the interpreter ends; not with the GIL.
void StopCallbacks();

}  // namespace gft
