#include "gradientflow/planner/call_prices.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "gradientflow/collectives/choose.h"
#include "gradientflow/collectives/player.h"

namespace gradientflow::planner {
namespace {

constexpr auto kAllreduce = CollectiveKind::kAllreduce;
// The sizes of which the prices are found: from 4 bytes to 4 GiB.
constexpr int kFirstOctave = 2;
constexpr int kEndOctave = 32;
constexpr int kPointsPerOctave = 4;
// Beyond this number of ranks the library opens links when they are needed, and
// does not choose what needs all of them.
constexpr int kMostLinkedRanks = 64;
// Played sizes below a whole segment: three octaves lie between two of them.
constexpr std::size_t kPlayedStep = 8;

Topology TopologyOf(const Cluster& cluster) {
  Topology topology;
  for (std::size_t host = 0; host < cluster.host_ranks.size(); ++host) {
    topology.host.insert(topology.host.end(),
                         static_cast<std::size_t>(cluster.host_ranks[host]),
                         static_cast<int>(host));
  }
  return topology;
}

CostModel WithoutBytes(CostModel costs) {
  for (LinkModel* link : {&costs.inside, &costs.across}) {
    link->seconds_per_byte = 0;
    link->long_seconds_per_byte = 0;
    link->reduce_seconds_per_byte = 0;
  }
  return costs;
}

double LatencyOf(const CollectiveAlgorithm& algorithm, CallQuestion question) {
  question.model = WithoutBytes(question.model);
  if (question.alone) question.alone = WithoutBytes(*question.alone);
  return PredictSeconds(kAllreduce, algorithm, question);
}

// As if all messages took as long as those between hosts, where there are any:
// the thread that drives makes passes beside each.
double RoundsOf(const CollectiveAlgorithm& algorithm, const Cluster& cluster,
                CallQuestion question) {
  const LinkModel& link = cluster.slowest_link();
  const double round = link.latency_seconds + link.message_seconds;
  if (round == 0) return 0;
  question.model.inside = question.model.across = link;
  // A sync waits for a pass as a round does, although it takes less time.
  if (question.OneSided(algorithm)) {
    question.model.inside.latency_seconds =
        round / SyncSeconds({.latency_seconds = 1});
  }
  question.alone.reset();
  return LatencyOf(algorithm, question) / round;
}

// What the messages of the busiest rank take from its backward. The price is
// linear in a rank's own work per message, and has all messages of all segments
// in it.
double HostWorkOf(const CollectiveAlgorithm& algorithm, const Cluster& cluster,
                  CallQuestion question) {
  question.alone.reset();
  question.model = {
      .inside = {.message_seconds =
                     cluster.inside_backward_seconds_per_message},
      .across = {.message_seconds =
                     cluster.across_backward_seconds_per_message}};
  return PredictSeconds(kAllreduce, algorithm, question);
}

// The part of a large cluster that is played for the whole: hosts like its
// fullest one.
Cluster PlayedPart(Cluster cluster) {
  if (cluster.ranks() <= kMostPlayedRanks) return cluster;
  const int hosts = cluster.hosts() > 1 ? 2 : 1;
  const int per_host =
      std::min(cluster.most_host_ranks(), kMostPlayedRanks / hosts);
  cluster.host_ranks =
      SpreadRanks(kMostPlayedRanks / per_host * per_host, per_host);
  return cluster;
}

// Finds out how much longer a schedule takes than its formula says.
class Played {
 public:
  Played(const Cluster& cluster, std::size_t wire_element_bytes)
      : topology_(TopologyOf(cluster)),
        question_(QuestionFor(cluster, wire_element_bytes, 4)) {}

  // Returns that factor for a segment of such a call. Equal segments are played
  // once.
  double Factor(const CollectiveAlgorithm& algorithm, std::size_t count) {
    CallQuestion question = question_;
    question.count = count;
    const std::size_t cut = CutOf(kAllreduce, algorithm, question).elements;
    std::size_t size = 1;
    while (size * kPlayedStep <= question.count) size *= kPlayedStep;
    if (question.count >= cut) size = cut;
    const auto known = factors_.find({&algorithm, size});
    if (known != factors_.end()) return known->second;
    const double factor = Play(algorithm, question, size);
    factors_[{&algorithm, size}] = factor;
    return factor;
  }

 private:
  double Play(const CollectiveAlgorithm& algorithm, CallQuestion question,
              std::size_t elements) const {
    // The player knows none of these; the factor applies to what does.
    question.alone.reset();
    for (LinkModel* link : {&question.model.inside, &question.model.across}) {
      link->long_seconds_per_byte = 0;
      link->waiting_seconds = 0;
    }
    question.count = elements;
    const double formula = PredictSeconds(kAllreduce, algorithm, question);
    if (!(formula > 0) || std::isinf(formula)) return 1;
    CallShape shape;
    shape.size = question.size();
    shape.topology = topology_;
    shape.one_sided = question.hosts_share_memory;
    shape.wire_element_bytes = question.wire_element_bytes;
    shape.costs = {question.model, question.model};
    std::vector<Schedule> ranks;
    for (int r = 0; r < shape.size; ++r) {
      ranks.push_back(MakeSchedule(algorithm, r, shape, elements));
    }
    const double played = PriceSchedules(
        ranks, topology_, question.wire_element_bytes, question.model);
    return std::isfinite(played) ? played / formula : 1;
  }

  const Topology topology_;
  const CallQuestion question_;
  std::map<std::pair<const CollectiveAlgorithm*, std::size_t>, double> factors_;
};

}  // namespace

CallQuestion QuestionFor(const Cluster& cluster, std::size_t wire_element_bytes,
                         std::size_t bytes) {
  CallQuestion question;
  question.hosts = HostMap(cluster.ranks(), TopologyOf(cluster));
  question.count = (bytes + wire_element_bytes - 1) / wire_element_bytes;
  question.wire_element_bytes = wire_element_bytes;
  question.model = cluster.costs;
  question.alone = cluster.alone;
  question.hosts_share_memory = cluster.hosts_share_memory;
  question.all_share_memory =
      cluster.hosts_share_memory && cluster.hosts() == 1;
  question.few_links = cluster.ranks() > kMostLinkedRanks;
  question.segment_bytes = cluster.segment_bytes;
  question.window = cluster.segments_in_flight;
  return question;
}

CallPrices::CallPrices(const Cluster& cluster, std::size_t wire_element_bytes,
                       Pricing pricing) {
  CallQuestion question = QuestionFor(cluster, wire_element_bytes, 4);
  Played played(PlayedPart(cluster), wire_element_bytes);
  for (int octave = kFirstOctave; octave < kEndOctave; ++octave) {
    const std::size_t first = std::size_t{1} << octave;
    for (int k = 0; k < kPointsPerOctave; ++k) {
      const std::size_t bytes =
          first + first / kPointsPerOctave * static_cast<std::size_t>(k);
      question.count = bytes / wire_element_bytes;
      if (question.count * wire_element_bytes != bytes) continue;
      Point point;
      point.bytes = static_cast<double>(bytes);
      point.algorithm = cluster.algorithm != nullptr
                            ? cluster.algorithm
                            : CheapestAlgorithm(kAllreduce, question).algorithm;
      point.seconds = PredictSeconds(kAllreduce, *point.algorithm, question);
      point.latency_seconds = LatencyOf(*point.algorithm, question);
      point.rounds = RoundsOf(*point.algorithm, cluster, question);
      point.host_seconds = HostWorkOf(*point.algorithm, cluster, question);
      if (pricing == Pricing::kPlayed && cluster.ranks() > 1) {
        const double factor = played.Factor(*point.algorithm, question.count);
        point.seconds *= factor;
        point.latency_seconds *= factor;
        point.rounds *= factor;
      }
      point.latency_seconds = std::min(point.latency_seconds, point.seconds);
      points_.push_back(point);
    }
  }
}

CallPrices::CallPrices(std::vector<Point> points)
    : points_(std::move(points)) {}

CallPrices::Place CallPrices::Find(double bytes) const {
  if (bytes <= points_.front().bytes || points_.size() == 1) return {0, 0};
  const auto above = std::upper_bound(
      points_.begin(), points_.end() - 1, bytes,
      [](double value, const Point& point) { return value < point.bytes; });
  const auto index = static_cast<std::size_t>(above - points_.begin()) - 1;
  const double width = points_[index + 1].bytes - points_[index].bytes;
  return {index, (bytes - points_[index].bytes) / width};
}

double CallPrices::At(double bytes, double Point::*price) const {
  const Place place = Find(bytes);
  const double from = points_[place.index].*price;
  if (place.part == 0) return from;
  return from + place.part * (points_[place.index + 1].*price - from);
}

double CallPrices::Seconds(double bytes) const {
  return At(bytes, &Point::seconds);
}

double CallPrices::LatencySeconds(double bytes) const {
  return std::min(At(bytes, &Point::latency_seconds), Seconds(bytes));
}

double CallPrices::Rounds(double bytes) const {
  return At(bytes, &Point::rounds);
}

double CallPrices::HostSeconds(double bytes) const {
  return At(bytes, &Point::host_seconds);
}

const CollectiveAlgorithm* CallPrices::AlgorithmOf(double bytes) const {
  return points_[Find(bytes).index].algorithm;
}

}  // namespace gradientflow::planner
