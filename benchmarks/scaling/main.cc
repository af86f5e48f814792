// How training scales with the techniques of the paper switched on one after
// the other: backward passes measured on a V100 are replayed on a timer, or
// their operations are done on a GPU; the communication is real. The path of
// one step: cell.cc -> gradientflow/session.h.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/scaling/model.h"
#include "benchmarks/scaling/runner.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow::benchmarks {
namespace {

constexpr char kAbout[] =
    "Replays training iterations (backward as measured on a V100, mixed\n"
    "precision) on a timer with real communication between rank processes.\n"
    "An iteration is backward, the communication it leaves exposed, and the\n"
    "time of forward and update; gradients are random numbers, every step's\n"
    "result is checked. Times of alexnet_bn and resnet50_gf are measured,\n"
    "those of the other models follow from their operations.\n"
    "With --device cuda gradients live on a GPU, and backward is work there:\n"
    "matrix products (cuBLAS) of the model's operations, measured alone "
    "first.\n";

struct Arguments {
  RunSettings run;
  std::string json;
};

// What the settings table takes for `name`.
CLI::Validator As(const std::string& name) {
  return CLI::Validator(
      [name](const std::string& text) {
        Options options;
        const Status status = SetOption(&options, name, text);
        return status.ok() ? std::string() : status.message();
      },
      "");
}

void AddOptions(CLI::App& app, Arguments& arguments) {
  RunSettings& run = arguments.run;
  std::vector<std::string> models = ModelNames();
  models.emplace_back("all");
  std::vector<std::string> modes;
  for (const Mode& mode : Modes()) modes.push_back(mode.name);
  app.option_defaults()->always_capture_default();
  app.add_option("--model", run.models, "repeatable")
      ->check(CLI::IsMember(models));
  app.add_option("--modes", run.modes, "default: all")
      ->delimiter(',')
      ->check(CLI::IsMember(modes));
  app.add_flag("--sweep", run.sweep,
               "instead of modes: the automatic bucket size against fixed "
               "ones");
  app.add_option("--ranks", run.ranks, "processes, e.g. 1,2,4")
      ->delimiter(',')
      ->check(CLI::Range(1, 64));
  app.add_option("--fabric", run.fabric, "auto, shm or tcp")
      ->check(CLI::IsMember({"auto", "shm", "tcp"}));
  app.add_option("--device", run.device,
                 "where gradients live: cpu, cuda or cuda:N")
      ->check(As("device"));
  app.add_option("--device-collectives", run.device_collectives,
                 "auto, nccl or staged: how GPUs exchange")
      ->check(As("device_collectives"));
  app.add_option("--batch", run.batch, "images per rank; times scale with it")
      ->check(CLI::Range(1, 65536));
  app.add_option("--rounds", run.rounds, "of all modes in turn")
      ->check(CLI::Range(1, 10000));
  app.add_option("--steps", run.steps, "timed, per round and mode")
      ->check(CLI::Range(1, 10000));
  app.add_option("--link-gbps", run.link_gbps,
                 "each rank in a network namespace behind a link of this "
                 "rate; needs root; 0: this machine as it is");
  app.add_option("--link-mtu", run.link_mtu)->check(CLI::Range(576, 65535));
  app.add_option("--data", run.data, "folder of the tables");
  app.add_option("--json", arguments.json, "write the rows as JSON lines");
}

void PrintNotes(const RunSettings& run) {
  bool derived = false;
  for (const std::string& model : run.models) {
    derived = derived || (model != "alexnet_bn" && model != "resnet50_gf");
  }
  std::printf(
      "\nspeed-up: images/s against one GPU without communication; gain: "
      "against the first mode;\nexposed: communication after backward; hidden: "
      "share of it that ran under backward;\ntheta: bucket size.\n");
  if (run.device != "cpu") {
    std::printf(
        "Backward is matrix products on %s of twice the forward operations; "
        "its time without\ncommunication was measured in the same processes, "
        "on all ranks at once. Forward and\nupdate keep their proportion to "
        "it, and are waited for.\n",
        run.device.c_str());
    return;
  }
  if (run.batch != 128) {
    std::printf("Times are those of batch 128, scaled to batch %d.\n",
                run.batch);
  }
  if (derived) {
    std::printf(
        "Times of models other than alexnet_bn and resnet50_gf follow from "
        "their operations.\n");
  }
}

// The first row chose its bucket size itself; how far is it from the best?
void PrintSweep(const std::vector<Row>& rows) {
  const auto best = std::min_element(
      rows.begin(), rows.end(), [](const Row& a, const Row& b) {
        return a.iteration_seconds < b.iteration_seconds;
      });
  std::printf("%s, %d ranks: automatic theta takes %.3f of the best (%s)\n",
              best->model.c_str(), best->ranks,
              rows.front().iteration_seconds / best->iteration_seconds,
              best->label.c_str());
}

Status Run(const Arguments& arguments) {
  std::ofstream json;
  if (!arguments.json.empty()) json.open(arguments.json);
  std::printf("%s", RowHeader().c_str());
  int ranks = 0;
  const std::size_t sweep = SweepModes().size();
  std::vector<Row> swept;
  const Status status = RunScaling(arguments.run, [&](const Row& row) {
    if (ranks != 0 && row.ranks != ranks) std::printf("\n");
    ranks = row.ranks;
    std::printf("%s", RowLine(row).c_str());
    std::fflush(stdout);
    if (json.is_open()) json << RowJson(row);
    if (!arguments.run.sweep) return;
    swept.push_back(row);
    if (swept.size() < sweep) return;
    PrintSweep(swept);
    swept.clear();
  });
  GF_RETURN_IF_ERROR(status);
  if (!arguments.json.empty() && !json.flush()) {
    return Status(StatusCode::kInternal, arguments.json + ": cannot write");
  }
  PrintNotes(arguments.run);
  return Status();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(kAbout);
  AddOptions(app, arguments);
  CLI11_PARSE(app, argc, argv);
  std::sort(arguments.run.ranks.begin(), arguments.run.ranks.end());
  auto& models = arguments.run.models;
  if (std::find(models.begin(), models.end(), "all") != models.end()) {
    models = ModelNames();
  }
  const Status status = Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "scaling: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "scaling: %s\n", error.what());
  return 1;
}
