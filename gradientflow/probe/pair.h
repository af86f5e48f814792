#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/status.h"
#include "gradientflow/communicator/communicator.h"

// What messages between two ranks cost. One rank of the pair leads: it makes
// the calls of PairLeader, and the other one runs FollowPair() until the leader
// is gone. Other ranks do nothing meanwhile, or are pairs of their own. Both
// calls block; errors are those of the communicator.
namespace gradientflow {

enum class Direction : std::uint32_t {
  kFromLeader,
  kToLeader,
  kBoth,  // At once.
};

// Messages of one size that follow one another.
struct Flow {
  std::size_t message_bytes = 0;
  Direction direction = Direction::kFromLeader;
  int in_flight = 8;  // So many at a time, in each direction.
  // How long to measure, roughly. The measurement takes at least
  // kLeastMessages messages after those for warm-up.
  double seconds = 0.5;
  // How long a train takes if there are more than the least number of them:
  // lines with a token bucket are faster at first, for what they did not carry
  // while the ranks waited.
  double train_seconds = 0.2;
  // How often the thread that drives runs the pair's Pass for each message that
  // arrives. Only in both directions.
  int passes = 0;
};

// Bytes per second and direction; of a flow in both directions, the mean of the
// two.
struct FlowRate {
  double mean = 0;  // Of all trains together.
  // At least half of the trains, and at least 99 % of them, were as fast.
  double p50 = 0;
  double p99 = 0;
};

// What a rank computes on the thread that drives, as CSC does.
using Pass = std::function<void()>;

// Returns the rate of trains of so many bytes, each of which took so long to
// arrive. There is at least one train.
FlowRate RateOf(std::span<const double> seconds, double train_bytes);

// A flow of so many messages, in trains of as many messages each.
struct Trains {
  std::uint32_t count = 0;
  std::uint32_t messages = 0;  // Of each.
};

// Returns how a flow is divided for which there are `seconds` if each message
// takes `each`: a train takes `train_seconds` or more, and has at least four
// messages, however slow they are.
Trains TrainsOf(double seconds, double train_seconds, double each);

// Seconds, of some thousand messages one after another.
struct MessageTimes {
  double p50 = 0;
  double p99 = 0;
};

class PairLeader {
 public:
  // `peer` runs FollowPair(). The first and the third are borrowed and outlive
  // the leader.
  PairLeader(Communicator& comm, int peer, const Clock& clock, Pass pass = {})
      : comm_(comm), peer_(peer), clock_(clock), pass_(std::move(pass)) {}

  static constexpr int kLeastMessages = 12;

  // Half the time of a small message and its answer.
  Result<MessageTimes> Latency(double seconds);
  // What a small message adds to a round of several, in both directions: a
  // rank's own work for one that it sends and one that it receives.
  Result<MessageTimes> OwnWork(double seconds);
  // Makes rounds of small messages, as OwnWork() does, for at least `seconds`.
  // Returns how many this rank has sent, and got.
  Result<std::uint64_t> Messages(double seconds);
  Result<FlowRate> Rate(const Flow& flow);
  // How long one byte sent and one byte received together keep the thread that
  // drives, which passes over memory all the time. REQUIRES a Pass.
  Result<double> DriverSecondsPerByte(std::size_t message_bytes,
                                      double seconds);
  // The peer returns from FollowPair().
  Status End();

 private:
  Communicator& comm_;
  const int peer_;
  const Clock& clock_;
  const Pass pass_;
};

Status FollowPair(Communicator& comm, int leader, const Clock& clock,
                  const Pass& pass = {});

}  // namespace gradientflow
