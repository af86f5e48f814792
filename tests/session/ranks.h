#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/observe/logger.h"
#include "gradientflow/session.h"
#include "tests/device/fake_device.h"
#include "tests/rdma/fake_verbs.h"

// Ranks as threads, each with a session of its own.
namespace gradientflow::testing {

enum class Over {
  kMemory,    // All ranks share memory.
  kMessages,  // In-process messages, no shared memory.
  kPlaces,    // Like kMessages, with ranks that write to each other's memory.
  kTcp,       // GradientSession::Open() over TCP on loopback.
  kMixed,   // GradientSession::Open(); two ranks a host, TCP between the hosts.
  kNeeded,  // Like kTcp, with links that are made when they are needed.
  kRdma,    // GradientSession::Open() over RDMA, on (fake) cards.
  // Like kMemory, with every rank's pool on a (fake) device of its own.
  kDevices,
  // Like kMessages, with the odd ranks' pools on devices.
  kSomeDevices,
  // Like kDevices, with (fake) NCCL.
  kNccl,
  // Like kRdma, on fake cards, with every rank's pool on a fake device that the
  // cards may reach.
  kRdmaDevices,
};
inline constexpr Over kEverywhere[] = {Over::kMemory, Over::kMessages,
                                       Over::kTcp, Over::kMixed, Over::kRdma};
const char* OverName(Over over);
// For tests over all of these with several numbers of ranks.
std::string ParamName(
    const ::testing::TestParamInfo<std::tuple<Over, int>>& info);

struct Job {
  int size = 1;
  Over over = Over::kMemory;
  Options options = TestOptions();
  std::vector<TensorSpec> tensors;
  // Devices may be given weights in the test's own memory.
  bool weights_on_host = false;
  // For kRdmaDevices: the ways in which a card may reach a device, and whether
  // the device can wait for what cards have written to it.
  bool dma_buf = true;
  bool peermem = false;
  bool flushes = true;
  // Replaces a rank's log; may be empty.
  std::function<std::unique_ptr<Logger>(int rank)> logger;
  // Makes one rank's settings or tensors differ; may be empty.
  std::function<void(int rank, Options*, std::vector<TensorSpec>*)> adapt;

  // Quiet options, with time-outs that a test can wait for.
  static Options TestOptions();
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

// Within a body: the device of the thread's rank; null if it has none.
FakeDevice* DeviceOfThisRank();
// And the stream that its gradients are computed on.
Stream* StreamOfThisRank();

// Within a body: the fake cards of all ranks, as of host 0; null if there are
// none.
FakeVerbs* CardsOfRanks();

// The same for jobs that may fail to open.
using Opened = Result<std::unique_ptr<GradientSession>>;
void OpenRanks(const Job& job,
               const std::function<void(int rank, Opened)>& body);

}  // namespace gradientflow::testing
