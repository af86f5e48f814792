#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"
#include "tests/device/fake_device.h"
#include "tests/nccl/nccl_ranks.h"
#include "tests/rdma/fake_verbs.h"

// Ranks as threads, each with a communicator of its own.
namespace gradientflow::testing {

enum class Over {
  kMemory,    // All ranks share memory.
  kMessages,  // In-process messages, no shared memory.
  kPlaces,    // Like kMessages, with ranks that write to each other's memory.
  kTcp,       // Communicator::Open() over TCP on loopback.
  kMixed,     // Communicator::Open(); two ranks a host, TCP between the hosts.
  kNeeded,    // Like kTcp, with links that are made when they are needed.
  kRdma,      // Communicator::Open() over RDMA, on (fake) cards.
  // Like kMemory, with a (fake) device of its own for every rank.
  kDevices,
  // Like kMessages, with devices for the odd ranks.
  kSomeDevices,
  // Like kDevices, with (fake) NCCL.
  kNccl,
  // Like kRdma, on fake cards, with a fake device for every rank that the cards
  // may reach.
  kRdmaDevices,
};
inline constexpr Over kEverywhere[] = {Over::kMemory, Over::kMessages,
                                       Over::kTcp, Over::kMixed, Over::kRdma};
const char* OverName(Over over);
// For tests over all of these with several numbers of ranks.
std::string ParamName(
    const ::testing::TestParamInfo<std::tuple<Over, int>>& info);

struct CommJob {
  int size = 1;
  Over over = Over::kMemory;
  Options options = TestOptions();
  // Devices may be given weights in the test's own memory.
  bool weights_on_host = false;
  // For kRdmaDevices: the ways in which a card may reach a device, and whether
  // the device can wait for what cards have written to it.
  bool dma_buf = true;
  bool peermem = false;
  bool flushes = true;
  // What each piece of work takes on the clock of the (fake) devices.
  double work_seconds = 0;
  // Makes one rank's settings differ; may be empty.
  std::function<void(int rank, Options*)> differ;

  // Quiet options, with time-outs that a test can wait for.
  static Options TestOptions();
};

// Runs `body` on all ranks at once, each on its own thread; returns when all
// have returned. A communicator that does not open is a test failure.
void RunRanks(const CommJob& job,
              const std::function<void(Communicator&)>& body);

// The same for jobs that may fail to open. The options are the rank's.
using OpenedComm = Result<std::shared_ptr<Communicator>>;
void OpenRanks(const CommJob& job,
               const std::function<void(const Options&, OpenedComm)>& body);

// Within a body: the device of the thread's rank and its stream, which calls
// follow; null if it has none.
FakeDevice* DeviceOfThisRank();
Stream* StreamOfThisRank();

// Within a body: the fake cards of all ranks, as of host 0; null if there are
// none.
FakeVerbs* CardsOfRanks();

// Within a body: the fake NCCL of all ranks; null if there is none.
FakeNccl* NcclOfRanks();

}  // namespace gradientflow::testing
