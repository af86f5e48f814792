// Coarse-grained sparse communication on a GPU, all but the wire, for
// AlexNet's pool: against the time that its bytes take at the copy rate.
#include <cstddef>
#include <vector>

#include "benchmarks/gpu/kernel_case.h"
#include "benchmarks/gpu/kernel_main.h"

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: of a program.
  return RunKernelProgram(
      {.name = "csc_path",
       .about = "The sparse path on a GPU, before and after the wire.",
       .rows = "gpu_csc_path",
       .in_turn = "path and copy in turn",
       .elements = 60967976,
       .cases =
           [](std::size_t elements) {
             std::vector<MakeCase> cases = CscPathCases(elements);
             cases.push_back(&TopKCase);
             return cases;
           },
       .what = "float32 elements, chunks of 32000, 15 % sent in float16"},
      argc, argv);
}
