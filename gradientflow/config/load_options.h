#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"

namespace gradientflow {

// Who gave a setting its value.
struct Origin {
  enum class Kind : std::uint8_t {
    kDefault,
    kEnvironment,  // Its GRADIENTFLOW_* variable.
    kLauncher,     // torchrun, Open MPI or Slurm.
    kProgram,      // LoadedOptions::Set().
  } kind = Kind::kDefault;
  std::string detail;  // "torchrun: RANK".

  std::string ToString() const;
};

// Options, and where each came from. Not thread-safe.
struct LoadedOptions {
  Options options;
  std::vector<Origin> origins;  // One per row of Settings().
  // What is wrong with GRADIENTFLOW_* variables, one sentence each. The
  // settings concerned keep their defaults. What the launcher leaves open is no
  // problem until it is needed: see Options::rank_problem.
  std::vector<std::string> problems;

  // OK, or kInvalidArgument with all the problems.
  Status status() const;
  // As SetOption(), on behalf of the program.
  Status Set(std::string_view name, std::string_view text);
};

// Defaults, then GRADIENTFLOW_*, then the launcher's variables for what those
// leave open; one rank if there is no launcher either. Reads all of it, however
// much is wrong. `environ`: null-terminated "NAME=value" strings.
LoadedOptions LoadOptions(const char* const* environ);

}  // namespace gradientflow
