#include "gradientflow/collectives/choose.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/group.h"

namespace gradientflow {
namespace {

using Algorithm = AllreduceAlgorithm;

constexpr std::pair<Algorithm, const char*> kNames[] = {
    {Algorithm::kAuto, "auto"},
    {Algorithm::kRing, "ring"},
    {Algorithm::kHalvingDoubling, "halving_doubling"},
    {Algorithm::kTwoSync, "two_sync"},
    {Algorithm::kOneRound, "one_round"},
    {Algorithm::kShared, "shared"},
    {Algorithm::kTwoLevel, "two_level"},
};

// Also the order of preference among equals.
constexpr Algorithm kCandidates[] = {
    Algorithm::kShared,          Algorithm::kTwoLevel, Algorithm::kRing,
    Algorithm::kHalvingDoubling, Algorithm::kTwoSync,  Algorithm::kOneRound,
};

Topology HostsOf(const Topology& topology, int size) {
  if (!topology.host.empty()) return topology;
  Topology alone;
  alone.host.resize(static_cast<std::size_t>(size));
  std::iota(alone.host.begin(), alone.host.end(), 0);
  return alone;
}

double BytesOf(const AllreduceQuestion& question) {
  return static_cast<double>(question.count) *
         static_cast<double>(question.wire_element_bytes);
}

// Traffic of the busiest host's line, per byte of the buffer and direction.
class HostLine {
 public:
  explicit HostLine(const Topology& topology) : host_(topology.host) {}

  // Every rank to its right neighbor, in 2(p-1) rounds.
  double Ring() {
    for (int r = 0; r < size(); ++r) Add(r, (r + 1) % size(), 1);
    return Busiest() * 2 * (size() - 1) / size();
  }

  // Every rank to every other, `bytes` each.
  double Direct(double bytes) {
    for (int r = 0; r < size(); ++r) {
      for (int q = 0; q < size(); ++q) Add(r, q, bytes);
    }
    return Busiest();
  }

  double HalvingDoubling() {
    int core = 1;
    while (core * 2 <= size()) core *= 2;
    for (int r = core; r < size(); ++r) {
      Add(r, r - core, 1);
      Add(r - core, r, 1);
    }
    // Halves out and, later, quarters, ... then the same way back.
    double share = 0.5;
    for (int bit = 1; bit < core; bit *= 2, share /= 2) {
      for (int r = 0; r < core; ++r) Add(r, r ^ bit, 2 * share);
    }
    return Busiest();
  }

 private:
  int size() const { return static_cast<int>(host_.size()); }
  int HostAt(int r) const { return host_[static_cast<std::size_t>(r)]; }

  void Add(int from, int to, double bytes) {
    if (HostAt(from) != HostAt(to)) sent_[HostAt(from)] += bytes;
  }

  double Busiest() const {
    double most = 0;
    for (const auto& [host, bytes] : sent_) most = std::max(most, bytes);
    return most;
  }

  const std::vector<int>& host_;
  std::map<int, double> sent_;
};

double Formula(Algorithm algorithm, int size, double bytes,
               const LinkModel& link) {
  switch (algorithm) {
    case Algorithm::kHalvingDoubling:
      return HalvingDoublingSeconds(size, bytes, link);
    case Algorithm::kTwoSync:
      return TwoSyncSeconds(size, bytes, link);
    case Algorithm::kOneRound:
      return OneRoundSeconds(size, bytes, link);
    default:
      return RingSeconds(size, bytes, link);
  }
}

double BusiestLine(Algorithm algorithm, const Topology& topology) {
  HostLine line(topology);
  switch (algorithm) {
    case Algorithm::kHalvingDoubling:
      return line.HalvingDoubling();
    case Algorithm::kTwoSync:
      return line.Direct(2.0 / static_cast<double>(topology.host.size()));
    case Algorithm::kOneRound:
      return line.Direct(1);
    default:
      return line.Ring();
  }
}

// What a ring's hop costs on average: a block passes all of them.
void AverageHop(const Topology& topology, const LinkModel& inside,
                LinkModel* across) {
  const auto& host = topology.host;
  double crossing = 0;
  for (std::size_t r = 0; r < host.size(); ++r) {
    crossing += host[r] != host[(r + 1) % host.size()] ? 1 : 0;
  }
  const double share = crossing / static_cast<double>(host.size());
  across->latency_seconds =
      share * across->latency_seconds + (1 - share) * inside.latency_seconds;
  across->message_seconds =
      share * across->message_seconds + (1 - share) * inside.message_seconds;
}

// An algorithm that knows no hosts, run by several: its formula over the link
// between them, with the bytes that the busiest host's line has to carry.
double PredictFlat(Algorithm algorithm, const AllreduceQuestion& question,
                   const Topology& topology) {
  const double bytes = BytesOf(question);
  const LinkModel& inside = question.model.inside;
  LinkModel link = question.model.across;
  if (topology.IsOneHost()) {
    return Formula(algorithm, question.size, bytes, inside);
  }
  if (algorithm == Algorithm::kRing) AverageHop(topology, inside, &link);
  const double own_line = Formula(algorithm, question.size, bytes, link);
  const double line_seconds =
      BusiestLine(algorithm, topology) * bytes * link.seconds_per_byte;
  link.seconds_per_byte = 0;
  return std::max(
      own_line, Formula(algorithm, question.size, bytes, link) + line_seconds);
}

double PredictAcross(const TwoLevelPlan& plan, double lane_bytes,
                     const LinkModel& across) {
  const int hosts = static_cast<int>(plan.hosts.size());
  LinkModel link = across;
  link.seconds_per_byte *= plan.lanes;  // The host's lanes share its line.
  switch (plan.across) {
    case TwoLevelPlan::Across::kNone:
      return 0;
    case TwoLevelPlan::Across::kOneRound:
      return OneRoundSeconds(hosts, lane_bytes, link);
    case TwoLevelPlan::Across::kHalvingDoubling:
      return HalvingDoublingSeconds(hosts, lane_bytes, link);
    case TwoLevelPlan::Across::kRing:
      return RingSeconds(hosts, lane_bytes, link);
  }
  return 0;
}

double PredictTwoLevel(const AllreduceQuestion& question,
                       const Topology& topology) {
  const TwoLevelPlan plan =
      PlanTwoLevel(topology, question.count, question.hosts_share_memory);
  const double bytes = BytesOf(question);
  const LinkModel& inside = question.model.inside;
  const double lane_bytes = bytes / plan.lanes;
  const double g = plan.largest;
  const double across = PredictAcross(plan, lane_bytes, question.model.across);
  if (plan.largest == 1) return across;
  if (plan.one_sided) {
    return across + 2 * inside.latency_seconds +
           2 * g * lane_bytes * inside.reduce_seconds_per_byte;
  }
  return across + 2 * inside.latency_seconds +
         2 * (g - 1) *
             (inside.message_seconds + lane_bytes * inside.seconds_per_byte) +
         g * lane_bytes * inside.reduce_seconds_per_byte;
}

bool HasTwoLevels(const Topology& topology) {
  const TwoLevelPlan plan = PlanTwoLevel(topology, 0, false);
  return plan.hosts.size() > 1 && plan.largest > 1;
}

double Predict(Algorithm algorithm, const AllreduceQuestion& question,
               const Topology& topology) {
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  switch (algorithm) {
    case Algorithm::kShared:
      if (!question.all_share_memory || question.size > kMaxReduceParties) {
        return kImpossible;
      }
      return SharedSeconds(question.size, BytesOf(question),
                           question.model.inside);
    case Algorithm::kTwoLevel:
      return HasTwoLevels(topology) ? PredictTwoLevel(question, topology)
                                    : kImpossible;
    case Algorithm::kOneRound:
      if (question.size > kMaxReduceParties) return kImpossible;
      break;
    default:
      break;
  }
  return PredictFlat(algorithm, question, topology);
}

std::string Milliseconds(double seconds) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g ms", seconds * 1e3);
  return text.data();
}

}  // namespace

const char* Name(AllreduceAlgorithm algorithm) {
  for (const auto& [value, name] : kNames) {
    if (value == algorithm) return name;
  }
  return "unknown";
}

Result<AllreduceAlgorithm> ParseAllreduceAlgorithm(std::string_view name) {
  std::string expected;
  for (const auto& [value, text] : kNames) {
    if (name == text) return value;
    expected += StrCat(expected.empty() ? "" : ", ", text);
  }
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("allreduce algorithm \"", name, "\": expected one of ", expected));
}

double PredictAllreduce(AllreduceAlgorithm algorithm,
                        const AllreduceQuestion& question) {
  assert(algorithm != AllreduceAlgorithm::kAuto);
  return Predict(algorithm, question,
                 HostsOf(question.topology, question.size));
}

AllreduceChoice ChooseAllreduce(const AllreduceQuestion& question) {
  const Topology topology = HostsOf(question.topology, question.size);
  AllreduceChoice best;
  best.seconds = std::numeric_limits<double>::infinity();
  std::vector<std::pair<Algorithm, double>> predicted;
  for (const Algorithm algorithm : kCandidates) {
    const double seconds = Predict(algorithm, question, topology);
    if (seconds == std::numeric_limits<double>::infinity()) continue;
    predicted.emplace_back(algorithm, seconds);
    // Rounding does not decide.
    if (seconds < best.seconds * (1 - 1e-9)) {
      best.algorithm = algorithm;
      best.seconds = seconds;
    }
  }
  std::string others;
  for (const auto& [algorithm, seconds] : predicted) {
    if (algorithm == best.algorithm) continue;
    others += StrCat(others.empty() ? "" : ", ", Name(algorithm), " ",
                     Milliseconds(seconds));
  }
  best.reason =
      StrCat(Name(best.algorithm), " ", Milliseconds(best.seconds), " (",
             others, "): ", question.count * question.wire_element_bytes,
             " bytes, ", question.size, " ranks");
  return best;
}

Schedule MakeAllreduce(AllreduceAlgorithm algorithm, int rank,
                       const AllreduceShape& shape, std::size_t count) {
  const int size = shape.topology.host.empty()
                       ? shape.size
                       : static_cast<int>(shape.topology.host.size());
  switch (algorithm) {
    case Algorithm::kHalvingDoubling:
      return HalvingDoublingAllreduce(rank, size, count);
    case Algorithm::kTwoSync:
      return TwoSyncAllreduce(rank, size, count);
    case Algorithm::kOneRound:
      return OneRoundAllreduce(rank, size, count);
    case Algorithm::kShared:
      return SharedAllreduce(rank, size, count);
    case Algorithm::kTwoLevel:
      return TwoLevelAllreduce(rank, HostsOf(shape.topology, size), count,
                               shape.one_sided);
    case Algorithm::kAuto:
    case Algorithm::kRing:
      break;
  }
  assert(algorithm != Algorithm::kAuto);
  return RingAllreduce(rank, size, count);
}

}  // namespace gradientflow
