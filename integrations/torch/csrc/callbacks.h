#pragma once

#include <functional>

namespace gft {

// Runs callbacks that may wait for other operations, or for Python's GIL, and
// therefore must not run on a thread that drives a session. No task waits for
// another task's thread: there are as many threads as waiting tasks, and after
// the first task one idle thread more.
void RunLater(std::function<void()> task);

// Runs the remaining tasks and ends the threads; later tasks run at once, on
// the caller's thread. To be called before the interpreter ends, without the
// GIL.
void StopCallbacks();

}  // namespace gft
