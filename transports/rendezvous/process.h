#pragma once

#include <string>

namespace gradientflow::rendezvous {

// Returns a line that names this process among all processes of all hosts and
// times, for HasEnded(). Empty if it cannot be told.
std::string ThisProcess();

// Returns whether the process of that line has certainly ended. False if it is
// of another host or PID namespace than this one, whose line is `mine`: then
// nobody here can know.
bool HasEnded(const std::string& process, const std::string& mine);

}  // namespace gradientflow::rendezvous
