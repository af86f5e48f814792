#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "gradientflow/session.h"
#include "tests/communicator/ranks.h"

// Ranks as threads, each with a session of its own.
namespace gradientflow::testing {

struct Job : CommJob {
  std::vector<TensorSpec> tensors;
  // Makes one rank's settings or tensors differ; may be empty.
  std::function<void(int rank, Options*, std::vector<TensorSpec>*)> adapt;
};

// Runs `body` on all ranks at once, each on its own thread; returns when all
// have returned. A session that does not open is a test failure.
void RunRanks(const Job& job,
              const std::function<void(GradientSession&)>& body);

// Calls OptimizerStep(), and waits until the device has finished it.
Status Update(GradientSession& session, const OptimizerOptions& config,
              const std::vector<float*>& weights);

// Calls ZeroGradients(), and waits until the device has zeroed them, so that
// the host may add to them.
Status ZeroAndWait(GradientSession& session);

// The same for jobs that may fail to open.
using Opened = Result<std::unique_ptr<GradientSession>>;
void OpenRanks(const Job& job,
               const std::function<void(int rank, Opened)>& body);

}  // namespace gradientflow::testing
