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

// What the ranks tell each other as a communicator opens: where each rank keeps
// its buffers, and which settings it has.
struct RankFacts {
  std::int64_t on_device = 0;     // 1 if not in host memory.
  std::int64_t device_id = 0;     // Device::unique_id(); 0 on the host.
  std::int64_t nccl_version = 0;  // 0 if there is no NCCL.
  std::int64_t settings = 0;      // Hash of what must not differ.
  std::int64_t shares = 1;        // See Transport::shares.
  std::int64_t places = 0;        // See Transport::places_all.
};

// The parts that run before there is a driver. All are borrowed.
struct OpeningArgs {
  Executor* executor = nullptr;
  Fabric* fabric = nullptr;
  const Clock* clock = nullptr;
  Clock::Time deadline{};

  // Polls as a driver would. Returns whether anything moved.
  bool Poll() const { return PollTogether(*executor, *fabric); }
};

// Runs `call` on the calling thread. If it has not ended by the deadline, the
// job fails with kDeadlineExceeded, which names the ranks that are awaited.
Status RunAtOpening(const OpeningArgs& args, const CollectiveCall& call);

// Runs `body` on a thread of its own. Meanwhile this thread tells the other
// ranks that this rank is alive. Returns when `body` has returned.
void RunBeside(const OpeningArgs& args, const std::function<void()>& body);

// Returns the texts of all ranks, by rank. All ranks make this call. Messages
// go to ranks at distances of powers of two alone, so it needs no other links.
// A text has at most 64 KiB.
Result<std::vector<std::string>> GatherTexts(const OpeningArgs& args,
                                             const std::string& mine);

// Returns the facts of all ranks, by rank. All ranks make this call. If
// settings differ, all ranks get the same kInvalidArgument, which names a rank
// whose settings are not those of rank 0.
Result<std::vector<RankFacts>> ExchangeFacts(const OpeningArgs& args,
                                             const RankFacts& mine);

// Returns whether all ranks can use NCCL: each has a device of its own, and all
// have the same version. If not, `why` says what is missing, and at which rank.
bool AllCanNccl(const std::vector<RankFacts>& ranks, std::string* why);

// Returns the first rank that does not share memory with its whole host, or -1.
int RankThatDoesNotShare(const std::vector<RankFacts>& ranks);

// Returns the first rank without Transport::places_all, or -1.
int RankWithoutPlaces(const std::vector<RankFacts>& ranks);

// Returns whether some ranks keep their gradients on a device and others on the
// host.
bool Mixed(const std::vector<RankFacts>& ranks);

}  // namespace gradientflow
