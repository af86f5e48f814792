#pragma once

#include <cstddef>

// What memory allows a step of sparse communication: loops that move the bytes
// that the passes of a step must move, and do nothing else.
namespace gradientflow::benchmarks {

// How a pass over some elements moves them. A residual that is apart is read
// with the gradients; sums go to wherever is written.
struct BareTraffic {
  bool residual = false;      // Reads and writes a residual of float32.
  bool writes_grads = false;  // Reads and writes the gradients, else reads.
  std::size_t elements = 0;
};

struct BarePasses {
  std::size_t element_bytes = 4;  // Of a gradient: 2 or 4.
  BareTraffic kept;
  BareTraffic sent;
};

// Runs both passes on `threads` threads, which divide each pass evenly, until
// they have run `rounds` times; returns the median time in milliseconds, from
// the moment when all threads are awake to that when the last one is done.
// Checks that each pass has read and written all of its bytes, and throws
// std::runtime_error if not.
double TimeBarePasses(const BarePasses& passes, int threads, int rounds);

// The bytes that the passes read and write, in all.
std::size_t BytesOf(const BarePasses& passes);

}  // namespace gradientflow::benchmarks
