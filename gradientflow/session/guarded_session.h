#pragma once

#include <memory>

#include "gradientflow/session.h"

namespace gradientflow {

// What Session::Open() gives out: `session`, in the process that opened it. A
// fork of that has the session's memory but neither its threads nor its
// descriptors, and locks in it may be held for ever: nothing of it runs there,
// its destructor neither.
std::unique_ptr<Session> Guard(std::unique_ptr<Session> session);

}  // namespace gradientflow
