#pragma once

#include <cstddef>
#include <string>

#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

// A stream of writes by ib_write_bw, of the package perftest.
struct IbWriteBw {
  std::string from;  // Devices of this machine.
  std::string to;
  std::size_t bytes = 0;  // Of a write.
  int writes = 0;
  int most_writes = 0;  // At a time.
};

// Returns the seconds that a write takes on average, as the program says, or
// kUnimplemented if it is not installed, or kUnavailable with what it said.
Result<double> Run(const IbWriteBw& stream);

}  // namespace gradientflow::benchmarks
