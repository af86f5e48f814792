#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu/kernel_case.h"

namespace gradientflow::benchmarks {

// A program that runs cases on a GPU.
struct KernelProgram {
  std::string name;          // "csc_path", for errors.
  std::string about;         // For --help.
  std::string rows;          // The rows' benchmark: "gpu_csc_path".
  std::string in_turn;       // What is timed in turn, for --help.
  std::size_t elements = 0;  // Unless told otherwise.
  // Of so many elements.
  std::function<std::vector<MakeCase>(std::size_t elements)> cases;
  std::string what;  // Printed after the number of elements.
};

// Reads the options, opens the device and runs the cases. Returns what main()
// does: 0, 1 after an error, kNoDevice.
int RunKernelProgram(const KernelProgram& program, int argc, char** argv);

}  // namespace gradientflow::benchmarks
