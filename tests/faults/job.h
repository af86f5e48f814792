#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"
#include "gradientflow/session.h"
#include "tests/faults/board.h"

namespace gradientflow::faults {

// A small training job whose every result is known.
struct JobConfig {
  JobConfig();

  int ranks = 3;
  // "tcp" or "shm"; in "mixed" the last rank lives on a host of its own.
  std::string fabric = "tcp";
  std::uint64_t steps = 6;
  std::vector<std::size_t> tensor_elements = {200000, 7, 50001, 1, 120000};
  Options options;  // All but rank, size, fabric and host.
};

// What `rank` of the job passes to GradientSession::Open().
Options OptionsOf(const JobConfig& job, int rank);
std::vector<TensorSpec> TensorsOf(const JobConfig& job);

// Fills `session`'s gradients for `step` and marks them ready, last tensor
// first. Writes step, phase and the number of tensors handed in to `report`.
void Backward(const JobConfig& job, std::uint64_t step,
              GradientSession* session, RankReport* report);
// Returns how many elements of the pool are not the sum over the ranks.
std::uint64_t CountWrong(const JobConfig& job, std::uint64_t step,
                         const GradientSession& session);

// Opens, trains and closes as `rank`, and keeps `report` up to date.
Status Train(const JobConfig& job, int rank, RankReport* report);

}  // namespace gradientflow::faults
