#include "gradientflow/collectives/choose.h"

#include <array>
#include <cstdio>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

void FillHosts(int size, Topology* topology) {
  if (!topology->host.empty()) return;
  topology->host.resize(static_cast<std::size_t>(size));
  std::iota(topology->host.begin(), topology->host.end(), 0);
}

// REQUIRES a topology that names the host of every rank.
double Predict(const AllreduceAlgorithm& algorithm,
               const AllreduceQuestion& question) {
  const bool runs = RunnableAllreduce(&algorithm, question.size,
                                      question.all_share_memory) == &algorithm;
  return runs ? algorithm.predict(question) : kImpossible;
}

std::string Milliseconds(double seconds) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3g ms", seconds * 1e3);
  return text.data();
}

}  // namespace

const char* Name(const AllreduceAlgorithm* algorithm) {
  return algorithm == nullptr ? "auto" : algorithm->name;
}

Result<const AllreduceAlgorithm*> ParseAllreduceAlgorithm(
    std::string_view name) {
  if (name == Name(nullptr)) return nullptr;
  for (const AllreduceAlgorithm* algorithm : allreduce::kTable) {
    if (name == algorithm->name) return algorithm;
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat("allreduce algorithm \"", name, "\": expected ",
                       AllreduceNames()));
}

std::string_view AllreduceNames() {
  static const std::string names = [] {
    std::string text = Name(nullptr);
    for (const AllreduceAlgorithm* algorithm : allreduce::kTable) {
      const bool last = algorithm == *std::rbegin(allreduce::kTable);
      text += StrCat(last ? " or " : ", ", algorithm->name);
    }
    return text;
  }();
  return names;
}

// A stand-in may need a stand-in of its own; the last one runs anywhere.
const AllreduceAlgorithm* RunnableAllreduce(const AllreduceAlgorithm* algorithm,
                                            int size, bool all_share) {
  const bool lacks_memory =
      algorithm->memory == AllreduceAlgorithm::Memory::kMustShare && !all_share;
  if (!lacks_memory && size <= algorithm->max_ranks) return algorithm;
  return RunnableAllreduce(algorithm->stand_in, size, all_share);
}

double PredictAllreduce(const AllreduceAlgorithm& algorithm,
                        const AllreduceQuestion& question) {
  AllreduceQuestion whole = question;
  FillHosts(whole.size, &whole.topology);
  return Predict(algorithm, whole);
}

AllreduceChoice ChooseAllreduce(const AllreduceQuestion& question) {
  AllreduceQuestion whole = question;
  FillHosts(whole.size, &whole.topology);
  AllreduceChoice best;
  best.seconds = kImpossible;
  std::vector<std::pair<const AllreduceAlgorithm*, double>> predicted;
  for (const AllreduceAlgorithm* algorithm : allreduce::kTable) {
    const double seconds = Predict(*algorithm, whole);
    if (seconds == kImpossible) continue;
    predicted.emplace_back(algorithm, seconds);
    // The margin keeps differences in rounding from deciding the choice.
    if (best.algorithm == nullptr || seconds < best.seconds * (1 - 1e-9)) {
      best.algorithm = algorithm;
      best.seconds = seconds;
    }
  }
  std::string others;
  for (const auto& [algorithm, seconds] : predicted) {
    if (algorithm == best.algorithm) continue;
    others += StrCat(others.empty() ? "" : ", ", algorithm->name, " ",
                     Milliseconds(seconds));
  }
  best.reason =
      StrCat(Name(best.algorithm), " ", Milliseconds(best.seconds), " (",
             others, "): ", question.count * question.wire_element_bytes,
             " bytes, ", question.size, " ranks");
  return best;
}

Schedule MakeAllreduce(const AllreduceAlgorithm& algorithm, int rank,
                       const AllreduceShape& shape, std::size_t count) {
  AllreduceShape whole = shape;
  FillHosts(whole.size, &whole.topology);
  return algorithm.make(rank, whole, count);
}

}  // namespace gradientflow
