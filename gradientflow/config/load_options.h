#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"

namespace gradientflow {

// What gave a setting its value.
struct Origin {
  enum class Kind : std::uint8_t {
    kDefault,
    kEnvironment,  // Its GRADIENTFLOW_* variable.
    kLauncher,     // torchrun, Open MPI or Slurm.
    kProgram,      // LoadedOptions::Set().
  } kind = Kind::kDefault;
  std::string detail;  // For example "torchrun: RANK".

  std::string ToString() const;
};

// Options, and where each value came from. NOT thread-safe.
struct LoadedOptions {
  Options options;
  std::vector<Origin> origins;  // One per row of Settings().
  // What is wrong with GRADIENTFLOW_* variables, one sentence each. The
  // settings concerned keep their defaults. What the launcher leaves open
  // becomes a problem only when it is needed: see Options::rank_problem.
  std::vector<std::string> problems;

  // Returns OK, or kInvalidArgument with all the problems.
  Status status() const;
  // Sets an option on behalf of the program, as SetOption() does.
  Status Set(std::string_view name, std::string_view text);
};

// Takes the defaults, then GRADIENTFLOW_* variables, then the launcher's
// variables for what those leave open. Without a launcher the job has one rank.
// Reads everything, however much is wrong. `variables` is an array of
// "NAME=value" strings that ends with null.
LoadedOptions LoadOptions(const char* const* variables);

}  // namespace gradientflow
