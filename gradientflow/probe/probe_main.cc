// gradientflow_probe measures what the network and the hosts of a job give, and
// writes the file that gradientflow_plan predicts with. Each rank of the job
// runs it, started by any launcher; or two processes do, with --pair.

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/load_options.h"
#include "gradientflow/config/settings_table.h"
#include "gradientflow/planner/provenance.h"
#include "gradientflow/planner/text_file.h"
#include "gradientflow/probe/pair_rank.h"
#include "gradientflow/probe/probe.h"
#include "gradientflow/probe/report.h"

extern char** environ;

namespace gradientflow {
namespace {

struct Arguments {
  std::string pair;
  std::string out;
  bool json = false;
  bool no_load = false;
  ProbeOptions probe;
};

// `taken` is held while the process lives.
Result<Options> OptionsOf(const Arguments& arguments, Fd* taken) {
  LoadedOptions loaded = LoadOptions(environ);
  if (!arguments.pair.empty()) {
    Result<PairRank> found = FindPairRank(arguments.pair);
    if (!found.ok()) return found.status();
    *taken = std::move(found.value().taken);
    GF_RETURN_IF_ERROR(loaded.Set("rank", StrCat(found.value().rank)));
    GF_RETURN_IF_ERROR(loaded.Set("size", "2"));
    GF_RETURN_IF_ERROR(loaded.Set("rendezvous", arguments.pair));
    loaded.options.rank_problem.clear();
    loaded.options.rendezvous_problem.clear();
  }
  GF_RETURN_IF_ERROR(loaded.status());
  if (loaded.options.size < 2) {
    return Status(StatusCode::kInvalidArgument,
                  "a probe takes at least two ranks: start one per rank of the "
                  "job, by torchrun, mpirun or srun, or two with --pair");
  }
  return loaded.options;
}

Status Run(const Arguments& arguments) {
  Fd taken;
  const Result<Options> options = OptionsOf(arguments, &taken);
  if (!options.ok()) return options.status();
  const auto comm = Communicator::Open(options.value());
  if (!comm.ok()) return comm.status();
  const Reopen reopen = [&](int connections) {
    Options other = options.value();
    other.connections = connections;
    other.job_token = StrCat(other.job_token, " probe ", connections);
    return Communicator::Open(other);
  };
  const SteadyClock clock;
  const auto result = Probe(*comm.value(), arguments.probe, reopen, clock);
  if (!result.ok()) return result.status();
  if (comm.value()->rank() != 0) return Status();
  planner::Probe file = FileOf(result.value());
  file.measured.by = planner::MeasuredBy("gradientflow_probe");
  file.measured.at = planner::TimeNow();
  const std::string text = planner::ProbeText(file);
  std::cout << (arguments.json ? text : TextOf(result.value())) << std::flush;
  return arguments.out.empty() ? Status()
                               : planner::WriteTextFile(arguments.out, text);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures latency, bandwidth and the work of the hosts, at rest and "
      "while "
      "they compute, for gradientflow_plan. To be run once per rank of a job, "
      "by its launcher (settings: GRADIENTFLOW_*, see gradientflow_info), on "
      "machines that do nothing else. Takes half a minute or less. Rank 0 "
      "prints what it found.",
      "gradientflow_probe");
  Arguments arguments;
  app.add_option("--pair", arguments.pair,
                 "host:port of one of two hosts: no launcher is needed, and "
                 "both run the same command")
      ->type_name("HOST:PORT");
  app.add_option("--out", arguments.out, "The file for gradientflow_plan")
      ->type_name("FILE");
  app.add_flag("--json", arguments.json, "Print that file instead of a table");
  app.add_option("--seconds", arguments.probe.seconds,
                 "Of each measurement, roughly")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  app.add_option("--load-threads", arguments.probe.load_threads,
                 "Threads of each rank that compute, for the measurements "
                 "under load; 0: the rank's share of the cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_flag("--no-load", arguments.no_load, "Measure at rest only");
  CLI11_PARSE(app, argc, argv);
  if (arguments.no_load) arguments.probe.load_threads = -1;
  const Status status = Run(arguments);
  if (status.ok()) return 0;
  std::cerr << "gradientflow_probe: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace gradientflow

int main(int argc, char** argv) { return gradientflow::Main(argc, argv); }
