// What choosing an algorithm costs: `choosing RANKS PER_HOST`. Prints a line
// per collective: its name, and the median and the most microseconds that the
// plan of a call takes whose size, and whose root if it has one, are new. A
// last line, "group", has the microseconds that it takes to learn of these
// ranks, once per communicator.
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/quantile.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/cost_model.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kCalls = 201;

CollectiveCall CallOf(CollectiveKind kind, int ranks, std::size_t count) {
  CollectiveCall call;
  call.kind = kind;
  call.count = count;
  call.equal_counts = true;
  const std::vector<std::size_t> parts(static_cast<std::size_t>(ranks), count);
  if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kScatter) {
    call.send_counts = parts;
  }
  if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kGather) {
    call.recv_counts = parts;
  }
  return call;
}

double Microseconds(Clock::Time since) {
  return 1e6 * Seconds(SteadyClock().Now() - since);
}

void Run(int ranks, int per_host) {
  CallGroup group;
  group.size = ranks;
  group.hosts_share = per_host > 1;
  for (int r = 0; r < ranks; ++r) group.topology.host.push_back(r / per_host);
  const Clock::Time began = SteadyClock().Now();
  CallPlanner planner(group, TypicalCostModels(per_host > 1), Cutting());
  const double learning = Microseconds(began);
  for (int k = 0; k < kCollectiveKinds; ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    std::vector<double> took;
    for (int i = 0; i < kCalls; ++i) {
      CollectiveCall call =
          CallOf(kind, ranks, 1 + static_cast<std::size_t>(i) * 997);
      call.root = i * 7 % ranks;
      const Clock::Time start = SteadyClock().Now();
      static_cast<void>(planner.Plan(call));
      took.push_back(Microseconds(start));
    }
    std::printf("%s %.2f %.2f\n", Name(kind), Quantile(took, 0.5),
                Quantile(took, 1));
  }
  std::printf("group %.2f %.2f\n", learning, learning);
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  gradientflow::benchmarks::Run(std::atoi(argv[1]), std::atoi(argv[2]));
}
