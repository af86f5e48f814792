// Coarse-grained sparse communication on a GPU, all but the wire, for
// AlexNet's pool: against the time that its bytes take at the copy rate.
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "benchmarks/gpu/case_runner.h"
#include "benchmarks/gpu/kernel_case.h"
#include "benchmarks/gpu/rig.h"

namespace gradientflow::benchmarks {
namespace {

struct Arguments {
  std::size_t elements = 60967976;
  int device = 0;
  std::string json;
  Rig::Settings rig;
};

Status Run(const Arguments& arguments, std::shared_ptr<Device> device) {
  auto rig = Rig::Create(std::move(device), arguments.rig);
  if (!rig.ok()) return rig.status();
  std::vector<MakeCase> cases = CscPathCases(arguments.elements);
  cases.push_back(&TopKCase);
  std::printf("%zu float32 elements, chunks of 32000, 15 %% sent in float16, ",
              arguments.elements);
  return RunCases(*rig.value(), cases, "gpu_csc_path", arguments.json).status();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The sparse path on a GPU, before and after the wire.");
  app.option_defaults()->always_capture_default();
  app.add_option("--elements", arguments.elements)
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--device", arguments.device, "index of the GPU");
  app.add_option("--rounds", arguments.rig.rounds, "path and copy in turn")
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", arguments.json, "write the rows as JSON lines");
  CLI11_PARSE(app, argc, argv);
  auto device = OpenGpu(arguments.device);
  if (!device.ok()) return kNoDevice;
  const Status status = Run(arguments, std::move(device).value());
  if (status.ok()) return 0;
  std::fprintf(stderr, "csc_path: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "csc_path: %s\n", error.what());
  return 1;
}
