#include "benchmarks/gpu/kernel_main.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "benchmarks/gpu/case_runner.h"
#include "benchmarks/gpu/rig.h"

namespace gradientflow::benchmarks {
namespace {

struct Arguments {
  std::size_t elements = 0;
  int device = 0;
  std::string json;
  Rig::Settings rig;
};

Status Run(const KernelProgram& program, const Arguments& arguments,
           std::shared_ptr<Device> device) {
  auto rig = Rig::Create(std::move(device), arguments.rig);
  if (!rig.ok()) return rig.status();
  const std::vector<MakeCase> cases = program.cases(arguments.elements);
  std::printf("%zu %s, ", arguments.elements, program.what.c_str());
  return RunCases(*rig.value(), cases, program.rows, arguments.json).status();
}

int Main(const KernelProgram& program, int argc, char** argv) {
  Arguments arguments;
  arguments.elements = program.elements;
  CLI::App app(program.about);
  app.option_defaults()->always_capture_default();
  app.add_option("--elements", arguments.elements)
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--device", arguments.device, "index of the GPU");
  app.add_option("--rounds", arguments.rig.rounds, program.in_turn)
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", arguments.json, "write the rows as JSON lines");
  CLI11_PARSE(app, argc, argv);
  auto device = OpenGpu(arguments.device);
  if (!device.ok()) return kNoDevice;
  const Status status = Run(program, arguments, std::move(device).value());
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(),
               status.ToString().c_str());
  return 1;
}

}  // namespace

int RunKernelProgram(const KernelProgram& program, int argc, char** argv) try {
  return Main(program, argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), error.what());
  return 1;
}

}  // namespace gradientflow::benchmarks
