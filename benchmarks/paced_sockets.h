#pragma once

#include <cstdint>

namespace gradientflow::benchmarks {

// A link of a given rate without root. The kernel paces every stream socket
// that this program makes from now on to `bytes_per_second`; 0 paces none. What
// a listener accepts inherits its rate. Pacing begins with the first packet, so
// that the library measures, and chooses for, the slow link.
// benchmarks/lib/network.py says when this is used.
void PaceSockets(std::uint64_t bytes_per_second);

}  // namespace gradientflow::benchmarks
