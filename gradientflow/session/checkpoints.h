#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/session/claims.h"
#include "gradientflow/session/gradient_pool.h"
#include "gradientflow/session/state_file.h"
#include "gradientflow/session/steps.h"

namespace gradientflow {

// All pointers are borrowed, and outlive the checkpoints.
struct CheckpointsArgs {
  Steps* steps = nullptr;
  GradientPool* pool = nullptr;
  Progress* progress = nullptr;
  const PoolLayout* layout = nullptr;
  std::string settings;   // StateText() of the session.
  int rank = 0;           // In the session's group.
  std::uint64_t job = 0;  // See SavedState.
  ClaimArgs claims;       // For the session's group.
};

// Saves and restores a session between steps: residual, momentum, selection,
// loss scale and step number. See session.h for what the public methods promise
// and state_file.h for the format.
class Checkpoints {
 public:
  explicit Checkpoints(CheckpointsArgs args) : args_(std::move(args)) {}

  Result<std::vector<std::byte>> Save();
  Result<std::size_t> Bytes();
  // In two phases: all ranks check their states and compare what they found;
  // then all of them apply the states, or none does.
  Status Restore(std::span<const std::byte> bytes);

 private:
  Status Check(const SavedState& state) const;
  Status Apply(const SavedState& state);

  CheckpointsArgs args_;
};

}  // namespace gradientflow
