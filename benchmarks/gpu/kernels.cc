// Every CUDA kernel at one size against the rate of a copy within the device's
// memory. Results are compared with the CPU's before anything is timed.
#include <cstddef>
#include <utility>
#include <vector>

#include "benchmarks/gpu/kernel_case.h"
#include "benchmarks/gpu/kernel_main.h"

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: of a program.
  return RunKernelProgram(
      {.name = "kernels",
       .about = "Every CUDA kernel against a copy in the device's memory.",
       .rows = "gpu_kernels",
       .in_turn = "kernel and copy in turn",
       .elements = std::size_t{64} << 20,
       .cases =
           [](std::size_t elements) {
             std::vector<MakeCase> cases;
             for (auto* const list : {&ElementCases, &ChunkCases, &TileCases}) {
               for (MakeCase& make : (*list)(elements)) {
                 cases.push_back(std::move(make));
               }
             }
             return cases;
           },
       .what = "elements"},
      argc, argv);
}
