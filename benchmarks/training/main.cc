// Data-parallel training on real data, rank processes on this machine: the
// same recipe with gradients sent in full, in half precision, and sparsely.
// The path of one step: train.cc -> gradientflow/session.h.
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/ranks.h"
#include "benchmarks/training/report.h"
#include "benchmarks/training/train.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kSplitSeed = 1998;

struct Settings {
  int ranks = 4;
  int seeds = 5;
  std::string fabric = "tcp";
  std::string data = "benchmarks/data/digits.csv";
  std::string json;
  Recipe recipe;
};

std::vector<Exchange> Exchanges() {
  // FP16 is used as in mixed precision: with a loss scale.
  return {{"dense FP32", DType::kFloat32, 0, 1},
          {"dense FP16", DType::kFloat16, 0, 256},
          {"CSC 85 % + FP16", DType::kFloat16, 0.85F, 256},
          {"CSC 95 % + FP16", DType::kFloat16, 0.95F, 256}};
}

std::string Pack(const std::vector<TrainingResult>& seeds) {
  Json json = Json::array();
  for (const TrainingResult& r : seeds) {
    json.push_back({r.train_loss, r.test_accuracy, r.bytes_per_step, r.seconds,
                    r.identical});
  }
  return json.dump();
}

std::vector<TrainingResult> Unpack(const std::string& text) {
  std::vector<TrainingResult> seeds;
  for (const Json& r : Json::parse(text)) {
    seeds.push_back(TrainingResult{r[0], r[1], r[2], r[3], r[4]});
  }
  return seeds;
}

Result<std::string> RankMain(const Settings& settings, const Split& split,
                             const Exchange& exchange, Options options) {
  std::vector<TrainingResult> results;
  for (int seed = 1; seed <= settings.seeds; ++seed) {
    options.job_token = "training " + std::to_string(seed);
    const auto result = Train(options, exchange, settings.recipe, split,
                              static_cast<std::uint64_t>(seed));
    if (!result.ok()) return result.status();
    results.push_back(result.value());
    if (options.rank == 0) std::fputc('.', stderr);
  }
  return Pack(results);
}

Result<Summary> RunExchange(const Settings& settings, const Split& split,
                            const Exchange& exchange, int ranks) {
  std::fprintf(stderr, "training: %s, %d %s, %d seeds ", exchange.name.c_str(),
               ranks, ranks == 1 ? "rank" : "ranks", settings.seeds);
  const Result<std::string> rendezvous = LocalRendezvous();
  if (!rendezvous.ok()) return rendezvous.status();
  const auto texts = RunRanks(ranks, [&](int rank) {
    Options options;
    options.rank = rank;
    options.size = ranks;
    options.rendezvous = rendezvous.value();
    options.fabric = settings.fabric;
    options.socket_ifname = "lo";
    return RankMain(settings, split, exchange, options);
  });
  std::fputc('\n', stderr);
  if (!texts.ok()) return texts.status();
  std::vector<std::vector<TrainingResult>> runs(
      static_cast<std::size_t>(settings.seeds));
  for (const std::string& text : texts.value()) {
    const std::vector<TrainingResult> seeds = Unpack(text);
    for (std::size_t i = 0; i < runs.size(); ++i) runs[i].push_back(seeds[i]);
  }
  return Summarise(exchange.name, runs);
}

Json ToJson(const Summary& s) {
  return {{"configuration", s.name},
          {"ranks", s.ranks},
          {"train_loss", s.train_loss},
          {"test_accuracy", s.accuracy},
          {"test_accuracy_sd", s.accuracy_sd},
          {"bytes_per_step_per_rank", s.bytes_per_step},
          {"seconds", s.seconds},
          {"weights_identical", s.identical}};
}

void PrintTable(const Settings& settings, const Split& split,
                const std::vector<Summary>& summaries) {
  std::printf(
      "\nHandwritten digits: %zu to train on, %zu to test on; network 64",
      split.train.count(), split.test.count());
  for (const std::size_t width : settings.recipe.hidden) {
    std::printf("-%zu", width);
  }
  std::printf(
      "-%d;\n%zu epochs, batch %zu over all ranks, momentum SGD, %d seeds "
      "(mean +- sd).\n\n%s",
      kClasses, settings.recipe.epochs, settings.recipe.batch, settings.seeds,
      SummaryHeader().c_str());
  // The first exchange with all ranks: what the others are held against.
  const Summary& base = summaries[settings.ranks > 1 ? 1 : 0];
  for (const Summary& summary : summaries) {
    std::fputs(SummaryLine(summary, base).c_str(), stdout);
  }
}

Status Run(const Settings& settings) {
  const Result<Digits> digits = LoadDigits(settings.data);
  if (!digits.ok()) return digits.status();
  const Split split = SplitDigits(digits.value(), kSplitSeed);
  std::vector<Summary> summaries;
  const auto add = [&](const Exchange& exchange, int ranks) {
    Result<Summary> summary = RunExchange(settings, split, exchange, ranks);
    if (!summary.ok()) return summary.status();
    summaries.push_back(std::move(summary).value());
    return Status();
  };
  const std::vector<Exchange> exchanges = Exchanges();
  if (settings.ranks > 1) GF_RETURN_IF_ERROR(add(exchanges[0], 1));
  for (const Exchange& exchange : exchanges) {
    GF_RETURN_IF_ERROR(add(exchange, settings.ranks));
  }
  PrintTable(settings, split, summaries);
  std::ofstream json;
  if (!settings.json.empty()) json.open(settings.json);
  bool identical = true;
  for (const Summary& summary : summaries) {
    identical = identical && summary.identical;
    if (json.is_open()) json << ToJson(summary) << '\n';
  }
  if (!settings.json.empty() && !json.flush()) {
    return Status(StatusCode::kInternal, settings.json + ": cannot write");
  }
  if (identical) return Status();
  return Status(StatusCode::kInternal, "ranks ended with different weights");
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Trains a small network on handwritten digits, data-parallel.");
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", settings.ranks, "processes")
      ->check(CLI::Range(1, 64));
  app.add_option("--seeds", settings.seeds, "runs per configuration")
      ->check(CLI::Range(1, 1000));
  app.add_option("--fabric", settings.fabric, "auto, shm or tcp")
      ->check(CLI::IsMember({"auto", "shm", "tcp"}));
  app.add_option("--epochs", settings.recipe.epochs)
      ->check(CLI::Range(1, 10000));
  app.add_option("--batch", settings.recipe.batch, "of all ranks together")
      ->check(CLI::Range(1, 1438));
  app.add_option("--lr", settings.recipe.lr, "falls linearly to 0");
  app.add_option("--chunk-elements", settings.recipe.chunk_elements)
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--data", settings.data, "digits.csv");
  app.add_option("--json", settings.json, "write the table as JSON lines");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(settings);
  if (status.ok()) return 0;
  std::fprintf(stderr, "training: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "training: %s\n", error.what());
  return 1;
}
