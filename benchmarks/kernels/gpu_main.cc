// Every CUDA kernel at one size, in comparison with the rate of a copy within
// the device's memory. With --csc: all kernels of coarse-grained sparse
// communication on a pool like AlexNet's. Results are compared with the CPU's
// before anything is timed.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "benchmarks/kernels/gpu_runner.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::size_t kElements = std::size_t{64} << 20;
constexpr std::size_t kAlexNet = 60967976;

struct Arguments {
  std::size_t elements = 0;
  bool csc = false;
  int device = 0;
  std::string json;
  Rig::Settings rig;
};

std::vector<MakeCase> Cases(const Arguments& arguments) {
  if (arguments.csc) {
    return CscCases(arguments.elements > 0 ? arguments.elements : kAlexNet);
  }
  const std::size_t n = arguments.elements > 0 ? arguments.elements : kElements;
  std::vector<MakeCase> cases = ElementCases(n);
  for (auto& more : {DeviceCases(n), ChunkCases(n), TileCases(n)}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

Status Run(const Arguments& arguments, std::shared_ptr<Device> device) {
  auto rig = Rig::Create(std::move(device), arguments.rig);
  if (!rig.ok()) return rig.status();
  std::ofstream json;
  if (!arguments.json.empty()) json.open(arguments.json);
  std::printf("%s\n%s", rig.value()->description().c_str(),
              CaseHeader().c_str());
  int missed = 0;
  for (const MakeCase& make : Cases(arguments)) {
    auto row = RunCase(*rig.value(), make());
    if (!row.ok()) return row.status();
    row.value()["benchmark"] = arguments.csc ? "gpu_csc" : "gpu_kernels";
    missed += row.value()["met"] ? 0 : 1;
    std::printf("%s", CaseLine(row.value()).c_str());
    std::fflush(stdout);
    json << row.value().dump() << "\n";
  }
  if (!arguments.json.empty() && !json.flush()) {
    return Status(StatusCode::kInternal, arguments.json + ": cannot write");
  }
  std::printf(
      "MB: read and written, at least; ratio: to a copy in the device's "
      "memory, timed in\nturn. All results are the CPU's. Targets missed: %d\n",
      missed);
  return Status();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("CUDA kernels against a copy in the device's memory.");
  app.option_defaults()->always_capture_default();
  app.add_option("--elements", arguments.elements, "0: as published")
      ->check(CLI::Range(0, 1 << 30));
  app.add_flag("--csc", arguments.csc, "the sparse path in place of kernels");
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
