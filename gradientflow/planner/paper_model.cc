#include "gradientflow/planner/paper_model.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/planner/nelder_mead.h"
#include "gradientflow/planner/normal_max.h"
#include "gradientflow/planner/step.h"

namespace gradientflow::planner {
namespace {

// A busy host gives so much of the bandwidth that figure 8 measured on idle
// ones: the rate that fits cluster V, whose network is the same, divided by
// figure 8's.
constexpr double kLoadedShare = 0.7;
// Errors beyond this count linearly.
constexpr double kRobustError = 0.03;
// A message of norms has some kilobytes.
constexpr double kNormBytes = 4096;

// Returns kOf(ranks). The numbers of GPUs of the paper are asked for in each of
// the thousands of steps of a fit, so their answers are kept.
template <auto kOf>
auto ForRanks(int ranks) {
  static const auto known = [] {
    std::map<int, decltype(kOf(1))> all;
    for (int n = 1; n <= 512; n *= 2) all.emplace(n, kOf(n));
    return all;
  }();
  const auto found = known.find(ranks);
  return found != known.end() ? found->second : kOf(ranks);
}

HostMap OneRankOnEach(int hosts) { return HostMap(hosts); }

// The library's price of a ring among `ranks` ranks, one hop like another. It
// is affine in the bytes, so two sizes say it.
CallPrices RingPrices(int ranks, double hop_seconds, double bytes_per_second) {
  CallQuestion question;
  question.hosts = ForRanks<OneRankOnEach>(ranks);
  question.wire_element_bytes = 2;
  // A ring moves almost two bytes per rank for each of the tensor.
  question.model.across = {.latency_seconds = hop_seconds,
                           .seconds_per_byte = 0.5 / bytes_per_second};
  question.model.inside = question.model.across;
  std::vector<CallPrices::Point> points;
  for (const std::size_t bytes : {std::size_t{2}, std::size_t{1} << 30}) {
    question.count = bytes / 2;
    points.push_back(
        {static_cast<double>(bytes),
         PredictSeconds(CollectiveKind::kAllreduce, allreduce::kRing, question),
         2 * (ranks - 1) * hop_seconds, &allreduce::kRing});
  }
  return CallPrices(std::move(points));
}

// Figure 8's calls on hosts that are busy: their bytes take longer.
CallPrices LoadedPrices(std::vector<CallPrices::Point> points) {
  const double seconds_per_byte = points.back().seconds / points.back().bytes;
  for (CallPrices::Point& point : points) {
    point.seconds += point.bytes * seconds_per_byte * (1 / kLoadedShare - 1);
  }
  return CallPrices(std::move(points));
}

Exchange ExchangeOf(PaperSetup setup) {
  Exchange exchange;
  exchange.wire_element_bytes = setup == PaperSetup::kFloat32 ? 4 : 2;
  exchange.csc = setup == PaperSetup::kCsc || setup == PaperSetup::kCscOverlap;
  exchange.overlap = setup == PaperSetup::kPerTensorOverlap ||
                     setup == PaperSetup::kLazyOverlap ||
                     setup == PaperSetup::kCscOverlap;
  if (setup == PaperSetup::kPerTensor || setup == PaperSetup::kFloat32 ||
      setup == PaperSetup::kPerTensorOverlap) {
    exchange.theta_bytes = 0;
  } else if (!exchange.overlap) {
    exchange.theta_bytes = kInfiniteTheta;
  }
  return exchange;
}

constexpr PaperSetup kSetups[] = {
    PaperSetup::kPerTensor, PaperSetup::kPerTensorOverlap,
    PaperSetup::kLazy,      PaperSetup::kLazyOverlap,
    PaperSetup::kCsc,       PaperSetup::kCscOverlap,
    PaperSetup::kFloat32};

}  // namespace

PaperModel::PaperModel(const PaperData& data) : data_(data) {
  for (const auto& [key, workload] : data.mixed) {
    if (key.second != 'V') continue;
    for (const PaperSetup setup : kSetups) {
      const Exchange exchange = ExchangeOf(setup);
      setups_[{key.first, setup}] = {exchange, {}};
    }
  }
  const auto& [ranks, points] = *data.allreduces.rbegin();
  small_hop_seconds_ =
      CallPrices(points).Seconds(kNormBytes) / (2.0 * (ranks - 1));
  for (auto& [key, setup] : setups_) {
    const bool plain = key.second == PaperSetup::kFloat32;
    const Workload& workload =
        plain ? data.float32.at(key.first) : data.mixed.at({key.first, 'V'});
    setup.bucketings = BucketingsOf(workload, setup.exchange);
  }
}

double PaperModel::ImagesPerSecond(const PaperCell& cell,
                                   const SharedConstants& constants) const {
  const bool on_v = cell.cluster == 'V';
  const Setup& setup = setups_.at({cell.network, cell.setup});
  Workload workload = cell.setup == PaperSetup::kFloat32
                          ? data_.float32.at(cell.network)
                          : data_.mixed.at({cell.network, cell.cluster});
  // The slowest of N is added below, from a table of maxima.
  workload.spread_fraction = 0;
  const CallPrices prices = on_v
                                ? RingPrices(cell.ranks, constants.hop_seconds,
                                             constants.bytes_per_second)
                                : LoadedPrices(data_.allreduces.at(cell.ranks));
  const CallPrices norms = on_v ? RingPrices(cell.ranks, small_hop_seconds_,
                                             constants.bytes_per_second)
                                : prices;
  Cluster cluster;
  cluster.host_ranks.assign(static_cast<std::size_t>(cell.ranks), 1);
  cluster.backward_seconds_per_call = constants.backward_seconds_per_call;
  double step = 0;
  if (on_v) {
    step = BestStep(workload, setup.exchange, setup.bucketings, cluster,
                    {&prices, &norms})
               .terms.step;
  } else {
    // Messages are those of cluster V, but they are ready at other times.
    step = BestStep(workload, setup.exchange,
                    BucketingsOf(workload, setup.exchange), cluster,
                    {&prices, &norms})
               .terms.step;
  }
  step += constants.spread_fraction * workload.compute_seconds *
          ForRanks<ExpectedMaximum>(cell.ranks);
  return cell.ranks * workload.batch_samples / step;
}

double ErrorOf(const PaperModel& model, const PaperCell& cell,
               const SharedConstants& constants) {
  return model.ImagesPerSecond(cell, constants) / cell.images_per_second - 1;
}

SharedConstants PaperModel::Fit(const std::vector<PaperCell>& cells,
                                const SharedConstants& start) const {
  // In units in which all four are around one.
  constexpr SharedConstants kUnit{1e-6, 1e9, 1e-2, 1e-4};
  const auto constants = [&](const std::vector<double>& x) {
    return SharedConstants{
        x[0] * kUnit.hop_seconds, x[1] * kUnit.bytes_per_second,
        x[2] * kUnit.spread_fraction, x[3] * kUnit.backward_seconds_per_call};
  };
  const auto cost = [&](const std::vector<double>& x) {
    double sum = 0;
    for (const PaperCell& cell : cells) {
      const double error =
          std::log1p(ErrorOf(*this, cell, constants(x))) / kRobustError;
      sum += 2 * (std::sqrt(1 + error * error) - 1);
    }
    return sum;
  };
  // The cost has several minima along the host's work per call, since
  // messages move across the end of backward.
  SharedConstants best = start;
  double least = std::numeric_limits<double>::infinity();
  for (const double host_work : {1.0, 7.0}) {
    const std::vector<double> from{
        start.hop_seconds / kUnit.hop_seconds,
        start.bytes_per_second / kUnit.bytes_per_second,
        start.spread_fraction / kUnit.spread_fraction, host_work};
    const auto found =
        Minimize({from, {1, 1.5, 0, 0}, {10, 3.5, 10, 10}}, cost);
    const double seen = cost(found);
    if (seen >= least) continue;
    least = seen;
    best = constants(found);
  }
  return best;
}

}  // namespace gradientflow::planner
