// One rank of this library's collectives: `rank MOST_BYTES`. Rank, size and
// rendezvous are in GRADIENTFLOW_* variables. The words of a batch are
// collective, dtype, wire dtype and algorithm. Its bytes are those of the
// buffer, or of one rank's block if there is one per rank.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/collectives/worker.h"
#include "benchmarks/lib/rank.h"
#include "gradientflow/collectives/call_plan.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/communicator/core.h"

namespace gradientflow::benchmarks {
namespace {

using enum CollectiveKind;

class Ours final : public Worker {
 public:
  explicit Ours(std::size_t most_bytes)
      : comm_(Must(Communicator::Open(Must(Options::FromEnv(environ))))),
        input_(Must(comm_->AllocateShared(most_bytes)).data),
        output_(Must(comm_->AllocateShared(most_bytes)).data) {}

  void Prepare(const Batch& batch) override {
    call_ = CollectiveCall();
    int kind = 0;
    while (Name(CollectiveKind(kind)) != batch.words.at(0)) {
      if (++kind == kCollectiveKinds) break;
    }
    const auto dtype = ParseDType(batch.words.at(1));
    const auto wire = ParseDType(batch.words.at(2));
    if (kind == kCollectiveKinds || !dtype || !wire ||
        !IsGradientType(*dtype)) {
      throw std::invalid_argument("no such collective or type");
    }
    call_.kind = CollectiveKind(kind);
    call_.algorithm = Must(ParseAlgorithm(call_.kind, batch.words.at(3)));
    call_.root = std::max(0, batch.root);
    call_.input = input_;
    call_.output = output_;
    call_.count = batch.bytes / SizeOf(*dtype);
    call_.dtype = *dtype;
    call_.wire = *wire;
    const std::vector<std::size_t> equal(
        static_cast<std::size_t>(comm_->size()), call_.count);
    if (Is({kAllToAll, kScatter})) call_.send_counts = equal;
    if (Is({kAllToAll, kGather})) call_.recv_counts = equal;
    call_.equal_counts = Is({kAllToAll});
  }
  void Once() override { Must(comm_->Run(call_)); }
  void Barrier() override { benchmarks::Barrier(*comm_); }
  std::int64_t Latest(std::int64_t mine) override {
    return MaxOverRanks(*comm_, mine);
  }

  // {"prices": {"ring": seconds, ...}, "chosen": "ring", "links": {"across":
  // {"together": [...], "alone": [...]}, "inside": ...}}: the prices of all
  // algorithms that can run, on average over the roots; the one that is chosen,
  // or "by root"; and of what prices are made: seconds of a round, a message, a
  // byte, more of a byte in long messages, and of a round while others wait.
  std::string Note() override {
    CommunicatorCore& core = comm_->core();
    CallPlanner planner(
        core.group(), core.executor().costs(),
        {core.options().segment_bytes, core.options().segments_in_flight});
    Json prices = Json::object();
    std::string chosen;
    CollectiveCall call = call_;
    for (call.root = 0; call.root < comm_->size(); ++call.root) {
      const CallQuestion question = planner.QuestionOf(call);
      for (const CollectiveAlgorithm* algorithm : AlgorithmsOf(call.kind)) {
        const double seconds = PredictSeconds(call.kind, *algorithm, question);
        if (!std::isfinite(seconds)) continue;
        prices[algorithm->name] =
            prices.value(algorithm->name, 0.0) + seconds / comm_->size();
      }
      const char* best = Name(ChooseAlgorithm(call.kind, question).algorithm);
      chosen = chosen.empty() || chosen == best ? best : "by root";
    }
    const auto link = [](const LinkModel& model) {
      return Json{model.latency_seconds, model.message_seconds,
                  model.seconds_per_byte, model.long_seconds_per_byte,
                  model.waiting_seconds};
    };
    const CostModels& costs = core.executor().costs();
    const auto links = [&](LinkModel CostModel::*place) {
      return Json{{"together", link(costs.together.*place)},
                  {"alone", link(costs.alone.*place)}};
    };
    return Json{{"prices", prices},
                {"chosen", chosen},
                {"links",
                 {{"across", links(&CostModel::across)},
                  {"inside", links(&CostModel::inside)}}}}
        .dump();
  }

  std::uint64_t CountWrong() override {
    const int size = comm_->size();
    const int rank = comm_->rank();
    const auto ranks = static_cast<std::size_t>(size);
    const auto block = call_.count * SizeOf(call_.dtype);
    const bool divides = Is({kReduceScatter, kAllToAll, kScatter});
    const std::size_t given = divides ? call_.count * ranks : call_.count;
    const bool in_place = Is({kAllreduce, kBroadcast});
    FillPattern(call_.dtype, rank, given, in_place ? output_ : input_);
    Once();
    const bool gathers = Is({kAllgather, kAllToAll, kGather});
    const bool elsewhere = Is({kReduce, kGather}) && rank != call_.root;
    std::uint64_t wrong = 0;
    for (int b = 0; b < (elsewhere ? 0 : gathers ? size : 1); ++b) {
      const int first = Is({kBroadcast, kScatter}) ? call_.root : b;
      Expected expected = {Reduces(call_.kind) ? 0 : first,
                           Reduces(call_.kind) ? size : first + 1};
      if (divides)
        expected.offset = call_.count * static_cast<std::size_t>(rank);
      wrong += CountUnexpected(call_.dtype, expected, call_.count,
                               output_ + static_cast<std::size_t>(b) * block);
    }
    Barrier();  // All ranks have read the result.
    if (!in_place) std::memset(input_, 0, block * (divides ? ranks : 1));
    std::memset(output_, 0, elsewhere ? 0 : block * (gathers ? ranks : 1));
    return wrong;
  }

 private:
  bool Is(std::initializer_list<CollectiveKind> kinds) const {
    return std::find(kinds.begin(), kinds.end(), call_.kind) != kinds.end();
  }

  const std::shared_ptr<Communicator> comm_;
  std::byte* const input_;
  std::byte* const output_;
  CollectiveCall call_;
};

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  if (argc != 2) return 2;
  Ours ours(std::strtoull(argv[1], nullptr, 10));
  return ServeBatches(ours);
} catch (const std::exception& error) {
  std::fprintf(stderr, "collectives: %s\n", error.what());
  return 1;
}
