#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/faults/campaign.h"

namespace {

using namespace gradientflow::faults;  // NOLINT: a main().

void Print(int index, const Draw& draw, const TrialResult& result,
           bool verbose) {
  const bool good = IsGood(result.verdict) && result.leftovers.empty();
  if (!good || verbose) {
    std::printf("#%d %s: hit in %s of step %llu: %s; %s\n", index,
                Describe(draw).c_str(), std::string(Name(result.phase)).c_str(),
                static_cast<unsigned long long>(result.step),
                std::string(Name(result.verdict)).c_str(), result.what.c_str());
    for (const std::string& left : result.leftovers) {
      std::printf("  left behind: %s\n", left.c_str());
    }
  } else if (index % 10 == 9) {
    std::printf("%d faults so far\n", index + 1);
  }
  std::fflush(stdout);
}

}  // namespace

// Lets ranks die and stop at random moments, and sees how the others end.
int main(int argc, char** argv) {
  CLI::App app(
      "Faults: kill -9 and SIGSTOP of random ranks, at random moments");
  CampaignConfig config;
  std::string fabric = "all";
  std::string json_path;
  bool verbose = false;
  app.add_option("--count", config.count, "faults")->capture_default_str();
  app.add_option("--ranks", config.ranks, "ranks per job")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--fabric", fabric, "tcp, shm, mixed or all")
      ->check(CLI::IsMember({"tcp", "shm", "mixed", "all"}))
      ->capture_default_str();
  app.add_option("--seed", config.seed, "of the random faults")
      ->capture_default_str();
  app.add_option("--json", json_path, "write the totals to this file");
  app.add_flag("--verbose", verbose, "a line per fault");
  CLI11_PARSE(app, argc, argv);
  if (fabric == "all") {
    config.fabrics = {JobFabric::kTcp, JobFabric::kShm, JobFabric::kMixed};
  } else {
    config.fabrics = {*ParseJobFabric(fabric)};
  }
  std::string folder =
      std::filesystem::temp_directory_path() / "gradientflow-faults-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return EXIT_FAILURE;
  }
  config.folder = folder;
  const CampaignTotals totals = RunCampaign(
      config, [&](int index, const Draw& draw, const TrialResult& result) {
        Print(index, draw, result, verbose);
      });
  std::filesystem::remove_all(folder);
  std::printf("%s\n", totals.Summary().c_str());
  if (!json_path.empty()) std::ofstream(json_path) << totals.Json() << "\n";
  return totals.Good() ? EXIT_SUCCESS : EXIT_FAILURE;
}
