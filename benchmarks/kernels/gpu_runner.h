#pragma once

#include <string>

#include "benchmarks/gpu/rig.h"
#include "benchmarks/kernels/kernel_case.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {

// Runs `which` on the device, on two sets of inputs in turn. Returns a row:
// name, time, rates and whether the targets are met. The first launch on the
// first set is compared with the CPU's, buffer by buffer. Throws
// std::runtime_error, which names the first difference.
nlohmann::json RunCase(Rig& rig, const KernelCase& which);

// The row as a line of a table, and the table's header.
std::string CaseHeader();
std::string CaseLine(const nlohmann::json& row);

}  // namespace gradientflow::benchmarks
