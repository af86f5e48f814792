// Every CUDA kernel at one size against the rate of a copy within the device's
// memory. Results are compared with the CPU's before anything is timed.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/gpu/case_runner.h"
#include "benchmarks/gpu/kernel_case.h"
#include "benchmarks/gpu/rig.h"

namespace gradientflow::benchmarks {
namespace {

struct Arguments {
  std::size_t elements = std::size_t{64} << 20;
  int device = 0;
  std::string json;
  Rig::Settings rig;
};

Status Run(const Arguments& arguments, std::shared_ptr<Device> device) {
  auto rig = Rig::Create(std::move(device), arguments.rig);
  if (!rig.ok()) return rig.status();
  std::vector<MakeCase> cases;
  for (auto* const list : {&ElementCases, &ChunkCases, &TileCases}) {
    for (MakeCase& make : (*list)(arguments.elements)) {
      cases.push_back(std::move(make));
    }
  }
  std::printf("%zu elements, ", arguments.elements);
  return RunCases(*rig.value(), cases, "gpu_kernels", arguments.json).status();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Every CUDA kernel against a copy in the device's memory.");
  app.option_defaults()->always_capture_default();
  app.add_option("--elements", arguments.elements)
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--device", arguments.device, "index of the GPU");
  app.add_option("--rounds", arguments.rig.rounds, "kernel and copy in turn")
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", arguments.json, "write the rows as JSON lines");
  CLI11_PARSE(app, argc, argv);
  auto device = OpenGpu(arguments.device);
  if (!device.ok()) return kNoDevice;
  const Status status = Run(arguments, std::move(device).value());
  if (status.ok()) return 0;
  std::fprintf(stderr, "kernels: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "kernels: %s\n", error.what());
  return 1;
}
