#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/collectives/executor.h"
#include "transports/fabric.h"

namespace gradientflow {

// What the ranks tell each other as a communicator opens: where each keeps its
// buffers, and by which settings it goes.
struct Place {
  std::int64_t on_device = 0;     // Not the host's memory.
  std::int64_t device_id = 0;     // Device::unique_id(); 0 on the host.
  std::int64_t nccl_version = 0;  // 0: no NCCL here.
  std::int64_t settings = 0;      // Hash of what must not differ.
};

// What runs before a session has an engine. Borrowed.
struct OpeningParts {
  Executor* executor = nullptr;
  Fabric* fabric = nullptr;
  const Clock* clock = nullptr;
  Clock::Time deadline{};
};

// Runs `call` on the calling thread. kDeadlineExceeded, and the job fails, if
// it is not done by the deadline; the message names who is awaited.
Status RunAtOpening(const OpeningParts& parts, const CollectiveCall& call);

// Runs `body` on a thread of its own, and meanwhile on this one what tells the
// other ranks that this one lives. Returns when the body does.
void RunBeside(const OpeningParts& parts, const std::function<void()>& body);

// Every rank's place, by rank. All ranks call. kInvalidArgument, the same on
// all ranks, names one whose settings are not those of rank 0.
Result<std::vector<Place>> ExchangePlaces(const OpeningParts& parts,
                                          const Place& mine);

// Whether all ranks can use NCCL: devices of their own, and one version.
// If not, `why` says what is missing, and at which rank.
bool AllCanNccl(const std::vector<Place>& places, std::string* why);

// Whether some ranks keep their gradients on a device and some on the host.
bool Mixed(const std::vector<Place>& places);

}  // namespace gradientflow
