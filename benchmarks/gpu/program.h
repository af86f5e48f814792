#pragma once

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "benchmarks/gpu/rig.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {

// A row of results, which has the field "met" if it has a target.
using Row = nlohmann::ordered_json;
using Report = std::function<void(const Row& row)>;

// The main() of a benchmark on a GPU: options, a device, rows in a file.
struct GpuProgram {
  explicit GpuProgram(const std::string& what);

  // Parses the command line, opens the device and calls `run`, whose rows are
  // printed and, with --json, written. Returns the exit status: 1 after an
  // exception, which is printed; 3, after the line "cuda: no device", if there
  // is none.
  int Run(int argc, char** argv,
          const std::function<void(Rig& rig, const Report& report)>& run);

  CLI::App app;  // With --device, --rounds and --json.
  int device = 0;
  Rig::Settings rig;

 private:
  std::string json_;
};

}  // namespace gradientflow::benchmarks
