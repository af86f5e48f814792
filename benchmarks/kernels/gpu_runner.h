#pragma once

#include "benchmarks/gpu/program.h"
#include "benchmarks/kernels/kernel_case.h"

namespace gradientflow::benchmarks {

// Runs `which` on the device, on two sets of inputs in turn. Returns a row:
// name, time, bytes read and written (at least), rates, and whether the targets
// are met; "ratio" is the rate over that of a copy in the device's memory,
// timed in turn. The first launch on the first set is compared with the CPU's,
// buffer by buffer. Throws std::runtime_error, which names the first
// difference.
Row RunCase(Rig& rig, const KernelCase& which);

}  // namespace gradientflow::benchmarks
