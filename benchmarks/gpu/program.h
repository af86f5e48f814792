#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "CLI/CLI.hpp"
#include "benchmarks/gpu/rig.h"

namespace gradientflow::benchmarks {

// The main() of a benchmark on a GPU: options, a device, rows in a file.
struct GpuProgram {
  explicit GpuProgram(const std::string& what);

  // Parses the command line, opens the device and calls `run`, which writes a
  // line of JSON per row. Returns the exit status: 1 after an exception, which
  // is printed; 3, after the line "cuda: no device", if there is none.
  int Run(int argc, char** argv,
          const std::function<void(Rig& rig, std::ostream& json)>& run);

  CLI::App app;  // With --device, --rounds and --json.
  int device = 0;
  Rig::Settings rig;

 private:
  std::string json_;
};

}  // namespace gradientflow::benchmarks
