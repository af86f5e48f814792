#pragma once

#include <cstdint>

namespace gradientflow::benchmarks {

// Imitates a link of a given rate without root. The kernel paces every stream
// socket that this program makes from here on to `bytes_per_second`; 0 paces
// none. Accepted sockets inherit the rate of their listener. Pacing begins with
// the first packet, so that the library measures the slow link and tunes for
// it. benchmarks/lib/network.py says when this is used.
void PaceSockets(std::uint64_t bytes_per_second);

}  // namespace gradientflow::benchmarks
