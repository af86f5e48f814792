// Every CUDA kernel at one size, in comparison with the rate of a copy within
// the device's memory. With --csc: all kernels of coarse-grained sparse
// communication on a pool like AlexNet's. Results are compared with the CPU's
// before anything is timed.

#include <algorithm>
#include <string>
#include <vector>

#include "benchmarks/gpu/program.h"
#include "benchmarks/kernels/gpu_runner.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kElements = std::size_t{64} << 20;
constexpr std::size_t kAlexNet = 60967976;

KernelCases Cases(bool csc, std::size_t elements) {
  if (csc) return CscCases(elements > 0 ? elements : kAlexNet);
  const std::size_t n = elements > 0 ? elements : kElements;
  KernelCases cases = ElementCases(n);
  for (auto& more : {DeviceCases(n), ChunkCases(n), TileCases(n)}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

// Whether a case was asked for: `only` has a part of its name, or nothing.
bool IsWanted(const std::vector<std::string>& only, const std::string& name) {
  return only.empty() ||
         std::any_of(only.begin(), only.end(), [&](const std::string& part) {
           return name.find(part) != std::string::npos;
         });
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  GpuProgram program("CUDA kernels against a copy in the device's memory.");
  std::size_t elements = 0;
  bool csc = false;
  std::vector<std::string> only;
  program.app.add_option("--elements", elements, "0: as published")
      ->check(CLI::Range(0, 1 << 30));
  program.app.add_flag("--csc", csc, "the sparse path in place of kernels");
  program.app.add_option("--only", only, "cases with a part of these names")
      ->delimiter(',');
  return program.Run(argc, argv, [&](Rig& rig, const Report& report) {
    for (const KernelCase& which : Cases(csc, elements)) {
      if (!IsWanted(only, which.name)) continue;
      Row row = {{"benchmark", csc ? "gpu_csc" : "gpu_kernels"}};
      row.update(RunCase(rig, which));
      report(row);
    }
  });
}
