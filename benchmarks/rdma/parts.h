#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "transports/rdma/rail.h"

// What the bare ranks have in common. Errors are thrown (lib/must.h).
namespace gradientflow::benchmarks {

// Opens the port "rxe0:1" for a job of so many ranks, with room for so many
// receives.
std::shared_ptr<Rail> OpenPort(const std::string& port, std::size_t ranks,
                               int receives);

// Adds `floats` floats of each rank, in the order of ranks. parts[own] may be
// `sum`. As the library adds, since its time would hide that of the messages: a
// virtual machine may lack the vectors for which compilers and kernels differ.
void SumParts(const std::vector<const void*>& parts, std::size_t own,
              float* sum, std::size_t floats);

}  // namespace gradientflow::benchmarks
