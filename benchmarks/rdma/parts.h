#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/rail.h"

// What the bare ranks have in common. Errors are thrown (lib/must.h).
namespace gradientflow::benchmarks {

// Opens the port "rxe0:1" for a job of so many ranks, with room for so many
// receives.
std::shared_ptr<Rail> OpenPort(const std::string& port, std::size_t ranks,
                               int receives);

// Returns ranks that are linked, with `floats` floats to sum each. Rank r is on
// port 1 of the device whose name is `devices` and r.
template <typename Rank>
std::vector<std::unique_ptr<Rank>> OpenRanks(const std::string& devices,
                                             std::size_t ranks,
                                             std::size_t floats) {
  std::vector<std::unique_ptr<Rank>> all;
  for (std::size_t r = 0; r < ranks; ++r) {
    all.push_back(
        std::make_unique<Rank>(StrCat(devices, r, ":1"), r, ranks, floats));
  }
  for (const auto& a : all) {
    for (const auto& b : all) {
      if (a != b) a->Link(*b);
    }
  }
  return all;
}

// Adds `floats` floats of each rank, in the order of ranks. parts[own] may be
// `sum`. As the library adds, since its time would hide that of the messages: a
// virtual machine may lack the vectors for which compilers and kernels differ.
void SumParts(const std::vector<const void*>& parts, std::size_t own,
              float* sum, std::size_t floats);

}  // namespace gradientflow::benchmarks
