#include "gradientflow/collectives/choose.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
// Among this many ranks a segment has the size of the setting.
constexpr std::size_t kFewRanks = 8;
// Segments do not grow past this size. It bounds the memory of the window.
constexpr std::size_t kMostSegmentBytes = std::size_t{8} << 20;
// Nor do blocks of all ranks together.
constexpr std::size_t kMostBlocksBytes = std::size_t{4} << 20;
// Messages inside a host wait for a processor and for no line, so there is
// nothing to hide: a call of up to so many segments is one segment there.
// Larger ones are cut because their segments stay in a core's caches.
constexpr std::size_t kUncutSegments = 4;
// A one-sided segment is this many times as large as usual: it pays for two
// synchronisations.
constexpr std::size_t kOneSidedSegments = 4;
// An algorithm that needs the call as one segment is not chosen for buffers
// above this size: it would need as much scratch memory.
constexpr double kMostWholeBytes = 4 << 20;
// Segments that pass through the ranks one after another are no shorter: from
// here on a message costs more than its bytes.
constexpr auto kLeastPassedBytes = static_cast<std::size_t>(kShortMessageBytes);
// A smaller part of a prediction is an error of rounding.
constexpr double kRounding = 1e-9;

std::string Milliseconds(double seconds) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g ms", seconds * 1e3);
  return text.data();
}

// Returns whether a buffer of the call has a block per rank.
bool HasBlocks(CollectiveKind kind) {
  return kind == CollectiveKind::kAllgather ||
         kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kGather ||
         kind == CollectiveKind::kScatter;
}

bool SendsInsideOneHost(const CollectiveAlgorithm& algorithm,
                        const CallQuestion& question) {
  return algorithm.memory == CollectiveAlgorithm::Memory::kMessages &&
         question.hosts.hosts() == 1;
}

}  // namespace

const char* Name(CollectiveKind kind) {
  constexpr const char* kNames[] = {"allreduce", "broadcast",      "reduce",
                                    "allgather", "reduce_scatter", "all_to_all",
                                    "gather",    "scatter",        "barrier"};
  return kNames[static_cast<int>(kind)];
}

const char* Name(const CollectiveAlgorithm* algorithm) {
  return algorithm == nullptr ? "auto" : algorithm->name;
}

Result<const CollectiveAlgorithm*> ParseAlgorithm(CollectiveKind kind,
                                                  std::string_view name) {
  if (name == Name(nullptr)) return nullptr;
  std::string names = Name(nullptr);
  const auto table = AlgorithmsOf(kind);
  for (const CollectiveAlgorithm* algorithm : table) {
    if (name == algorithm->name) return algorithm;
    names += StrCat(algorithm == table.back() ? " or " : ", ", algorithm->name);
  }
  return Status(
      StatusCode::kInvalidArgument,
      StrCat(Name(kind), " algorithm \"", name, "\": expected ", names));
}

Result<const CollectiveAlgorithm*> ParseAllreduceAlgorithm(
    std::string_view name) {
  return ParseAlgorithm(CollectiveKind::kAllreduce, name);
}

std::string_view AllreduceNames() {
  static const std::string names = [] {
    std::string text = Name(nullptr);
    for (const CollectiveAlgorithm* algorithm : allreduce::kTable) {
      const bool last = algorithm == *std::rbegin(allreduce::kTable);
      text += StrCat(last ? " or " : ", ", algorithm->name);
    }
    return text;
  }();
  return names;
}

// A stand-in may need a stand-in of its own; the last one runs anywhere.
const CollectiveAlgorithm* RunnableAlgorithm(
    const CollectiveAlgorithm* algorithm, int size, bool all_share,
    bool all_place) {
  using Memory = CollectiveAlgorithm::Memory;
  const bool lacks_memory =
      (algorithm->memory == Memory::kMustShare && !all_share) ||
      (algorithm->memory == Memory::kMustPlace && !all_place);
  if (!lacks_memory && size <= algorithm->max_ranks) return algorithm;
  return RunnableAlgorithm(algorithm->stand_in, size, all_share, all_place);
}

LinkModel CallQuestion::Over(double crossing, double share) const {
  const CostModel& one = alone ? *alone : model;
  return crossing > 0 ? UnderLoad(one.across, model.across, share)
                      : UnderLoad(one.inside, model.inside, share);
}

bool CallQuestion::OneSided(const CollectiveAlgorithm& algorithm) const {
  using Memory = CollectiveAlgorithm::Memory;
  return algorithm.memory == Memory::kMustShare ||
         (algorithm.memory == Memory::kMayShare && hosts_share_memory);
}

// A rank of the largest host sends most messages inside it, and one of the
// smallest host fewest.
LinkModel CallQuestion::ToAll(double crossing, double share) const {
  LinkModel link = Over(crossing, share);
  if (crossing == 0) return link;
  const double across = link.message_seconds;
  const double inside = Over(0, share).message_seconds;
  link.message_seconds = 0;
  for (const int company : {hosts.largest(), hosts.smallest()}) {
    const double far = (size() - company) / (size() - 1.0);
    link.message_seconds =
        std::max(link.message_seconds, far * across + (1 - far) * inside);
  }
  return link;
}

LinkModel CallQuestion::OneWayToAll(double crossing, double share) const {
  CallQuestion half = *this;
  half.alone = alone ? *alone : model;
  half.alone->across.message_seconds /= 2;
  half.alone->inside.message_seconds /= 2;
  return half.ToAll(crossing, share);
}

LinkModel CallQuestion::Hop(double crossing, double share) const {
  return Average(crossing, std::min(1.0, crossing / hosts.largest()), share);
}

LinkModel CallQuestion::RingHop(int trips, double share) const {
  if (hosts.hosts() == 1) return Over(0, share);
  // Twice around, a block leaves out two neighbouring hops. If no host has
  // three ranks, one of these crosses.
  const bool leaves_far = trips == 2 && hosts.largest() == 2;
  const double crossings = trips * hosts.hosts() - (leaves_far ? 1 : 0);
  const double far = crossings / (trips * (size() - 1.0));
  return Average(hosts.ring(), std::min(1.0, far), share);
}

LinkModel CallQuestion::Average(double crossing, double far,
                                double share) const {
  const LinkModel across = Over(1, share);
  const LinkModel inside = Over(0, share);
  if (crossing == 0) return inside;
  LinkModel hop = across;
  hop.latency_seconds =
      far * across.latency_seconds + (1 - far) * inside.latency_seconds;
  hop.message_seconds =
      far * across.message_seconds + (1 - far) * inside.message_seconds;
  return hop;
}

namespace {

struct PricedCut {
  SegmentCut cut;
  Price price;  // Of a segment.
  double seconds = 0;
  int terms = 0;
};

std::size_t MostSegmentBytes(CollectiveKind kind,
                             const CollectiveAlgorithm& algorithm,
                             const CallQuestion& question) {
  const std::size_t setting = question.segment_bytes;
  const auto ranks = static_cast<std::size_t>(question.size());
  std::size_t bytes = setting;
  if (HasBlocks(kind) || algorithm.lands_all) {
    bytes = std::min(bytes,
                     std::max(kMostBlocksBytes / ranks, setting / kFewRanks));
  } else if (kind == CollectiveKind::kAllreduce &&
             setting < kMostSegmentBytes) {
    if (question.OneSided(algorithm)) bytes *= kOneSidedSegments;
    if (ranks > kFewRanks) {
      bytes = bytes * ranks / kFewRanks;
      if (algorithm.least_messages) bytes = bytes * ranks / kFewRanks;
    }
    const std::size_t all = question.count * question.wire_element_bytes;
    if (all <= kUncutSegments * setting &&
        SendsInsideOneHost(algorithm, question)) {
      bytes = std::max(bytes, all);
    }
    bytes = std::max(setting, std::min(bytes, kMostSegmentBytes));
  }
  return std::min(bytes, algorithm.most_segment_bytes);
}

SegmentCut CutBy(std::size_t bytes, const CallQuestion& question) {
  SegmentCut cut;
  cut.elements = std::max<std::size_t>(bytes / question.wire_element_bytes, 1);
  const std::size_t segments =
      (question.count + cut.elements - 1) / cut.elements;
  cut.segments = static_cast<double>(segments);
  return cut;
}

void PriceOf(const CollectiveAlgorithm& algorithm, const CallQuestion& question,
             PricedCut* priced) {
  const double bytes = static_cast<double>(question.count) *
                       static_cast<double>(question.wire_element_bytes);
  const double segments = std::max(1.0, priced->cut.segments);
  priced->price = algorithm.price(question, bytes / segments);
  priced->terms += priced->price.terms;
  priced->seconds = PipelineSeconds(priced->price, segments, question.window);
}

PricedCut CutAndPrice(CollectiveKind kind, const CollectiveAlgorithm& algorithm,
                      const CallQuestion& question) {
  PricedCut best;
  if (algorithm.whole) {
    best.cut = {std::max<std::size_t>(question.count, 1), 1};
    PriceOf(algorithm, question, &best);
    return best;
  }
  std::size_t bytes = MostSegmentBytes(kind, algorithm, question);
  best.cut = CutBy(bytes, question);
  PriceOf(algorithm, question, &best);
  if (!algorithm.passes_on) return best;
  bytes = std::min(bytes, question.count * question.wire_element_bytes);
  for (bytes /= 2; bytes >= kLeastPassedBytes; bytes /= 2) {
    PricedCut finer{CutBy(bytes, question), {}, 0, best.terms};
    PriceOf(algorithm, question, &finer);
    best.terms = finer.terms;
    // The margin keeps differences in rounding from deciding.
    if (finer.seconds < best.seconds * (1 - kRounding)) best = finer;
  }
  return best;
}

}  // namespace

SegmentCut CutOf(CollectiveKind kind, const CollectiveAlgorithm& algorithm,
                 const CallQuestion& question) {
  return CutAndPrice(kind, algorithm, question).cut;
}

double PredictSeconds(CollectiveKind kind, const CollectiveAlgorithm& algorithm,
                      const CallQuestion& question, int* terms) {
  if (RunnableAlgorithm(&algorithm, question.size(), question.all_share_memory,
                        question.all_place) != &algorithm) {
    return kImpossible;
  }
  if (question.narrow_sums && algorithm.partial_sums) return kImpossible;
  const double bytes = static_cast<double>(question.count) *
                       static_cast<double>(question.wire_element_bytes);
  if (algorithm.whole &&
      bytes * (HasBlocks(kind) ? question.size() : 1) > kMostWholeBytes) {
    return kImpossible;
  }
  const PricedCut priced = CutAndPrice(kind, algorithm, question);
  if (terms != nullptr) *terms += priced.terms;
  return priced.seconds;
}

namespace {

using Predicted = std::vector<std::pair<const CollectiveAlgorithm*, double>>;

// Adds to `predicted` what was compared, unless it is null.
AlgorithmChoice Cheapest(CollectiveKind kind, const CallQuestion& question,
                         Predicted* predicted) {
  AlgorithmChoice best;
  best.seconds = kImpossible;
  const auto consider = [&](bool all_peers) {
    for (const CollectiveAlgorithm* algorithm : AlgorithmsOf(kind)) {
      if (algorithm->all_peers && !all_peers) continue;
      const double seconds =
          PredictSeconds(kind, *algorithm, question, &best.terms);
      if (seconds == kImpossible) continue;
      if (predicted != nullptr) predicted->emplace_back(algorithm, seconds);
      // The margin keeps differences in rounding from deciding the choice.
      if (best.algorithm == nullptr ||
          seconds < best.seconds * (1 - kRounding)) {
        best.algorithm = algorithm;
        best.seconds = seconds;
      }
    }
  };
  consider(!question.few_links);
  if (best.algorithm == nullptr) consider(true);
  return best;
}

}  // namespace

AlgorithmChoice CheapestAlgorithm(CollectiveKind kind,
                                  const CallQuestion& question) {
  return Cheapest(kind, question, nullptr);
}

AlgorithmChoice ChooseAlgorithm(CollectiveKind kind,
                                const CallQuestion& question) {
  Predicted predicted;
  AlgorithmChoice best = Cheapest(kind, question, &predicted);
  std::string others;
  for (const auto& [algorithm, seconds] : predicted) {
    if (algorithm == best.algorithm) continue;
    others += StrCat(others.empty() ? "" : ", ", algorithm->name, " ",
                     Milliseconds(seconds));
  }
  best.reason =
      StrCat(Name(best.algorithm), " ", Milliseconds(best.seconds), " (",
             others, "): ", question.count * question.wire_element_bytes,
             " bytes, ", question.size(), " ranks");
  return best;
}

Schedule MakeSchedule(const CollectiveAlgorithm& algorithm, int rank,
                      const CallShape& shape, std::size_t count) {
  if (!shape.topology.host.empty()) return algorithm.make(rank, shape, count);
  CallShape whole = shape;
  whole.topology.host.resize(static_cast<std::size_t>(shape.size));
  std::iota(whole.topology.host.begin(), whole.topology.host.end(), 0);
  return algorithm.make(rank, whole, count);
}

}  // namespace gradientflow
