// Allreduce between rank processes of this machine, as nccl-tests measures it,
// next to the bare loop over the same bytes and to other libraries, in turn.
// The path of a batch: runner.cc -> group.cc -> ours.cc ->
// gradientflow/session.h.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "benchmarks/allreduce/pattern.h"
#include "benchmarks/allreduce/runner.h"
#include "benchmarks/allreduce/sizes.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/text_values.h"

namespace gradientflow::benchmarks {
namespace {

constexpr char kAbout[] =
    "Times allreduces between processes of this machine. Every result is\n"
    "checked first. Times are medians over the rounds; of everything that is\n"
    "compared each round runs one batch after the other, and the ratio (their\n"
    "time over ours: above 1 ours is faster) is the median of the rounds'.\n";

struct Arguments {
  RunSettings run;
  std::string min = "4KB";
  std::string max = "128MB";
  double factor = 4;
  std::string dtype = "float32";
  std::string wire;
  std::string op = "sum";
  std::vector<std::string> algorithms = {"auto"};
  std::vector<std::string> peers;
  std::string json;
};

void AddOptions(CLI::App& app, Arguments& arguments) {
  RunSettings& run = arguments.run;
  app.option_defaults()->always_capture_default();
  app.add_option("--min", arguments.min, "smallest size, e.g. 4KB");
  app.add_option("--max", arguments.max, "largest size, e.g. 128MB");
  app.add_option("--factor", arguments.factor, "from size to size");
  app.add_option("--dtype", arguments.dtype, "of the buffers");
  app.add_option("--wire", arguments.wire, "on the way; default: as --dtype");
  app.add_option("--op", arguments.op,
                 "sum, mean, min, max, product, bit_and, bit_or or bit_xor");
  app.add_option("--ranks", run.group.ranks, "processes")
      ->check(CLI::Range(1, kMostRanks));
  app.add_option("--fabric", run.group.fabric, "auto, shm or tcp")
      ->check(CLI::IsMember({"auto", "shm", "tcp"}));
  app.add_option("--algorithm", arguments.algorithms,
                 "auto, all, or a list of names")
      ->delimiter(',');
  app.add_option("--iters", run.iterations, "per batch; 0: by size");
  app.add_option("--warmup", run.warmup, "per batch; -1: by --iters");
  app.add_option("--rounds", run.rounds)->check(CLI::Range(1, 10000));
  app.add_flag("--plain", run.group.plain,
               "buffers from the heap, not GradientSession::AllocateShared()");
  app.add_flag("--bound", run.bound,
               "shm: a bare loop over the same memory; tcp: a bare exchange "
               "of the same bytes, nothing reduced, the best of several ways");
  app.add_option("--peer", arguments.peers, "gloo, openmpi; repeatable")
      ->delimiter(',')
      ->check(CLI::IsMember({"gloo", "openmpi"}));
  app.add_option("--gloo-python", run.group.gloo_python,
                 "an interpreter that can import torch");
  app.add_option("--gloo-script", run.group.gloo_script);
  app.add_option("--openmpi-program", run.group.openmpi_program,
                 "openmpi_peer.c, compiled");
  app.add_option("--json", arguments.json, "write the rows as JSON lines");
}

Status Invalid(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, what);
}

Status ParseTypes(const Arguments& arguments, RunSettings* run) {
  const auto dtype = ParseDType(arguments.dtype);
  const auto wire =
      ParseDType(arguments.wire.empty() ? arguments.dtype : arguments.wire);
  const auto op = ParseReduceOp(arguments.op);
  if (!dtype || !wire || !op) {
    return Invalid(StrCat("--dtype ", arguments.dtype, " --wire ",
                          arguments.wire, " --op ", arguments.op,
                          ": no such type or operation"));
  }
  run->dtype = *dtype;
  run->wire = *wire;
  run->op = *op;
  return Status();
}

Status ParseAlgorithms(const Arguments& arguments, RunSettings* run) {
  std::vector<std::string> names = arguments.algorithms;
  if (std::find(names.begin(), names.end(), "all") != names.end()) {
    const bool all_share = run->group.fabric != "tcp";
    names = {Name(nullptr)};
    for (const AllreduceAlgorithm* each : allreduce::kTable) {
      const int ranks = run->group.ranks;
      // On one host, an algorithm of two levels is another one.
      if (each->memory != AllreduceAlgorithm::Memory::kMayShare &&
          RunnableAllreduce(each, ranks, all_share) == each) {
        names.emplace_back(each->name);
      }
    }
  }
  for (const std::string& name : names) {
    const auto algorithm = ParseAllreduceAlgorithm(name);
    if (!algorithm.ok()) return algorithm.status();
    run->algorithms.push_back(algorithm.value());
  }
  return Status();
}

Status CheckComparisons(const RunSettings& run) {
  if (run.openmpi && run.group.openmpi_program.empty()) {
    return Invalid("--peer openmpi needs --openmpi-program");
  }
  if (run.gloo &&
      (run.group.gloo_python.empty() || run.group.gloo_script.empty())) {
    return Invalid("--peer gloo needs --gloo-python and --gloo-script");
  }
  const bool plain_sum = run.dtype == DType::kFloat32 &&
                         run.wire == DType::kFloat32 &&
                         run.op == ReduceOp::kSum;
  if ((run.bound || run.openmpi || run.gloo) && !plain_sum) {
    return Invalid(
        "only sums of float32 are compared: no --bound, no --peer "
        "with other --dtype, --wire or --op");
  }
  return Status();
}

Status Complete(const Arguments& arguments, RunSettings* run) {
  GF_RETURN_IF_ERROR(ParseTypes(arguments, run));
  GF_RETURN_IF_ERROR(ParseAlgorithms(arguments, run));
  const auto min = ParseBytes(arguments.min);
  const auto max = ParseBytes(arguments.max);
  if (!min || !max || *max >= kAutoBytes) {
    return Invalid(StrCat("--min ", arguments.min, " --max ", arguments.max,
                          ": expected sizes like 4KB, 128MB"));
  }
  const auto sizes = Sizes(*min, *max, arguments.factor, SizeOf(run->dtype));
  if (!sizes.ok()) return sizes.status();
  run->sizes = sizes.value();
  for (const std::string& peer : arguments.peers) {
    (peer == "gloo" ? run->gloo : run->openmpi) = true;
  }
  return CheckComparisons(*run);
}

Status Run(Arguments arguments) {
  GF_RETURN_IF_ERROR(Complete(arguments, &arguments.run));
  std::ofstream json;
  if (!arguments.json.empty()) json.open(arguments.json);
  std::printf(
      "# %d ranks, %s buffers, medians of %d rounds\n%s",
      arguments.run.group.ranks, arguments.run.group.plain ? "plain" : "shared",
      arguments.run.rounds, RowHeader(ComparisonNames(arguments.run)).c_str());
  std::fflush(stdout);
  GF_RETURN_IF_ERROR(RunAllreduces(arguments.run, [&](const Row& row) {
    std::printf("%s", RowLine(row).c_str());
    std::fflush(stdout);
    if (json.is_open()) json << RowJson(row);
  }));
  if (!arguments.json.empty() && !json.flush()) {
    return Status(StatusCode::kInternal, arguments.json + ": cannot write");
  }
  return Status();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(kAbout);
  AddOptions(app, arguments);
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(arguments);
  if (status.ok()) return 0;
  std::fprintf(stderr, "allreduce: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "allreduce: %s\n", error.what());
  return 1;
}
