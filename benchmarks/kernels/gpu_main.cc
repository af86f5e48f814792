// Every CUDA kernel at one size, in comparison with the rate of a copy within
// the device's memory. With --csc: all kernels of coarse-grained sparse
// communication on a pool like AlexNet's. Results are compared with the CPU's
// before anything is timed.

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

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  GpuProgram program("CUDA kernels against a copy in the device's memory.");
  std::size_t elements = 0;
  bool csc = false;
  program.app.add_option("--elements", elements, "0: as published")
      ->check(CLI::Range(0, 1 << 30));
  program.app.add_flag("--csc", csc, "the sparse path in place of kernels");
  return program.Run(argc, argv, [&](Rig& rig, const Report& report) {
    for (const KernelCase& which : Cases(csc, elements)) {
      Row row = {{"benchmark", csc ? "gpu_csc" : "gpu_kernels"}};
      row.update(RunCase(rig, which));
      report(row);
    }
  });
}
