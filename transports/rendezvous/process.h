#pragma once

#include <optional>
#include <string>

namespace gradientflow::rendezvous {

// Returns a line that names this process among all processes of all hosts and
// times, for HasEnded(). Empty if it cannot be told.
std::string ThisProcess();

// Returns the seconds since this process started. Nothing if it cannot be told.
std::optional<double> AgeOfThisProcess();

// Returns whether these two see from each other's line whether they have ended:
// whether they are of one host and PID namespace.
bool SeeEachOther(const std::string& process, const std::string& mine);

// Returns whether the process of that line has certainly ended. False if it
// cannot be seen from this one, whose line is `mine`.
bool HasEnded(const std::string& process, const std::string& mine);

}  // namespace gradientflow::rendezvous
