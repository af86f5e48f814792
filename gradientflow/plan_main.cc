// gradientflow_plan says what a training step will take on a cluster, from
// files that were measured elsewhere: see docs/planner.md.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/buckets/bucket_size.h"
#include "gradientflow/planner/advise.h"
#include "gradientflow/planner/check.h"
#include "gradientflow/planner/csv_table.h"
#include "gradientflow/planner/hosts.h"
#include "gradientflow/planner/paper.h"
#include "gradientflow/planner/predict.h"
#include "gradientflow/planner/reports.h"
#include "gradientflow/planner/text_file.h"
#include "gradientflow/planner/usl.h"

namespace gradientflow::planner {
namespace {

// What the command line says; each command reads its part.
struct Arguments {
  std::string profile;
  std::string probe;
  std::string price;
  std::string csv;
  std::string data = "benchmarks/data";
  std::vector<int> ranks;
  std::vector<double> usl_ranks;
  std::string hosts;
  std::vector<int> ranks_per_host;
  std::vector<double> line_gbps;
  int most_hosts = 64;
  double line_of_runs_gbps = 0;
  std::vector<std::string> modes = {"dense"};
  std::vector<std::string> wires = {"float32"};
  std::vector<std::string> bucket_bytes = {"auto"};
  double sparsity = 0.85;
  bool after = false;
  double samples = 0;
  std::string deadline;
  double budget = 0;
  bool json = false;
  bool csv_out = false;

  TableFormat format() const {
    if (json) return TableFormat::kJson;
    return csv_out ? TableFormat::kCsv : TableFormat::kText;
  }
};

Status Bad(const std::string& what) {
  return {StatusCode::kInvalidArgument, what};
}

// Reads a file and parses it; errors name the file.
template <typename Parse>
auto Read(const std::string& path, Parse parse) -> decltype(parse("")) {
  const auto text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  auto parsed = parse(text.value());
  if (parsed.ok()) return parsed;
  return Bad(StrCat(path, ": ", parsed.status().message()));
}

Result<CsvTable> ReadCsv(const std::string& path) {
  const auto text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  return CsvTable::Parse(text.value(), path);
}

// From the file, or from the lists of which it takes the place.
Result<HostOptions> HostsOf(const Arguments& of) {
  if (of.hosts.empty()) return HostsFromLists(of.ranks_per_host, of.line_gbps);
  const auto table = ReadCsv(of.hosts);
  if (!table.ok()) return table.status();
  return ReadHosts(table.value());
}

// Those that were asked for; of hosts that are listed all, by default.
std::vector<int> RanksOf(const Arguments& of, const HostOptions& hosts) {
  if (!of.ranks.empty()) return of.ranks;
  if (hosts.hosts.empty()) return PredictOptions().ranks;
  return {hosts.RanksOf(static_cast<int>(hosts.hosts.size()))};
}

// A whole number of bytes, "inf" or "auto".
Status ParseBucket(const std::string& text, Exchange* exchange) {
  if (text == "auto") return {};
  char* end = nullptr;
  const double bytes = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(bytes >= 0)) {
    return Bad(
        StrCat("--bucket-bytes: expected bytes, inf or auto, seen ", text));
  }
  exchange->theta_bytes =
      bytes < 1e18 ? static_cast<std::size_t>(bytes) : kInfiniteTheta;
  return {};
}

// Every mode with every wire and every bucket size.
Result<std::vector<Exchange>> Exchanges(const Arguments& of) {
  std::vector<Exchange> exchanges;
  for (const std::string& mode : of.modes) {
    for (const std::string& wire : of.wires) {
      for (const std::string& bucket : of.bucket_bytes) {
        Exchange exchange;
        exchange.csc = mode == "csc";
        exchange.sparsity = of.sparsity;
        exchange.wire_element_bytes =
            SizeOf(ParseGradientType(wire).value_or(DType::kFloat32));
        exchange.overlap = !of.after;
        GF_RETURN_IF_ERROR(ParseBucket(bucket, &exchange));
        exchanges.push_back(exchange);
      }
    }
  }
  return exchanges;
}

// "6h", "90m", "30s", or seconds.
Result<double> Seconds(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit.empty() || unit == "s" ? 1
                        : unit == "m"               ? 60
                        : unit == "h"               ? 3600
                        : unit == "d"               ? 86400
                                                    : 0;
  if (end == text.c_str() || !(number > 0) || factor == 0) {
    return Bad(
        StrCat("--deadline: expected a time such as 6h, 90m or 30s, "
               "seen ",
               text));
  }
  return number * factor;
}

Result<std::string> RunPredict(const Arguments& of) {
  const auto profile = Read(of.profile, ParseProfile);
  if (!profile.ok()) return profile.status();
  const auto probe = Read(of.probe, ParseProbe);
  if (!probe.ok()) return probe.status();
  const auto exchanges = Exchanges(of);
  if (!exchanges.ok()) return exchanges.status();
  const auto hosts = HostsOf(of);
  if (!hosts.ok()) return hosts.status();
  PredictOptions options;
  static_cast<HostOptions&>(options) = hosts.value();
  options.ranks = RanksOf(of, hosts.value());
  options.exchanges = exchanges.value();
  const auto predicted = Predict(profile.value(), probe.value(), options);
  if (!predicted.ok()) return predicted.status();
  return Print(ReportOf(predicted.value()), of.format());
}

Result<std::string> RunAdvise(const Arguments& of) {
  const auto profile = Read(of.profile, ParseProfile);
  if (!profile.ok()) return profile.status();
  const auto probe = Read(of.probe, ParseProbe);
  if (!probe.ok()) return probe.status();
  const auto price = Read(of.price, ParsePrice);
  if (!price.ok()) return price.status();
  const auto exchanges = Exchanges(of);
  if (!exchanges.ok()) return exchanges.status();
  const auto hosts = HostsOf(of);
  if (!hosts.ok()) return hosts.status();
  AdviseOptions options;
  static_cast<HostOptions&>(options) = hosts.value();
  options.samples = of.samples;
  options.most_hosts = of.most_hosts;
  options.exchanges = exchanges.value();
  if (!of.deadline.empty()) {
    const auto seconds = Seconds(of.deadline);
    if (!seconds.ok()) return seconds.status();
    options.deadline_seconds = seconds.value();
  }
  if (of.budget > 0) options.budget = of.budget;
  const auto advice =
      Advise(profile.value(), probe.value(), price.value(), options);
  if (!advice.ok()) return advice.status();
  std::string out =
      Print(ReportOf(advice.value(), price.value().currency), of.format());
  if (advice.value().chosen || of.format() != TableFormat::kText) return out;
  return out + "\nNo plan keeps the limits.\n";
}

Result<std::string> RunUsl(const Arguments& of) {
  constexpr int kDraws = 1000;
  const auto table = ReadCsv(of.csv);
  if (!table.ok()) return table.status();
  const auto runs = ReadUslRuns(table.value());
  if (!runs.ok()) return runs.status();
  const auto report = ReportUsl(runs.value(), kDraws, 1);
  if (!report.ok()) return report.status();
  const auto sections = ReportOf(report.value(), of.usl_ranks);
  if (!sections.ok()) return sections.status();
  return Print(sections.value(), of.format());
}

Result<std::string> RunCheck(const Arguments& of) {
  const auto profile = Read(of.profile, ParseProfile);
  if (!profile.ok()) return profile.status();
  const auto probe = Read(of.probe, ParseProbe);
  if (!probe.ok()) return probe.status();
  const auto table = ReadCsv(of.csv);
  if (!table.ok()) return table.status();
  const auto runs = ReadRuns(table.value());
  if (!runs.ok()) {
    return Bad(StrCat(of.csv, ": ", runs.status().message()));
  }
  const auto report = CheckRuns(profile.value(), probe.value(), runs.value(),
                                of.line_of_runs_gbps);
  if (!report.ok()) return report.status();
  return Print(ReportOf(report.value()), of.format());
}

Result<std::string> RunPaper(const Arguments& of) {
  const auto data = ReadPaperData(of.data);
  if (!data.ok()) return data.status();
  const PaperReport report = ReportOnPaper(PaperModel(data.value()));
  const std::string out = Print(ReportOf(report), of.format());
  for (const Fold& fold : report.folds) {
    if (!fold.worse()) continue;
    std::cout << out;
    return Bad(StrCat("the fold \"", fold.fitted_to, "\" -> \"", fold.predicted,
                      "\" is worse than recorded"));
  }
  return out;
}

void AddFiles(CLI::App* app, Arguments* to) {
  app->add_option("--profile", to->profile, "What GRADIENTFLOW_PROFILE wrote")
      ->required();
  app->add_option("--probe", to->probe, "What gradientflow_probe wrote")
      ->required();
}

void AddCluster(CLI::App* app, Arguments* to) {
  CLI::Option* per_host =
      app->add_option("--ranks-per-host", to->ranks_per_host,
                      "Of all hosts, or of each: 8,8,4. Default: 1");
  per_host->delimiter(',')->check(CLI::Range(1, 1024));
  CLI::Option* lines =
      app->add_option("--line-gbps", to->line_gbps,
                      "The line of all hosts, or of each; 0: as probed, the "
                      "default");
  lines->delimiter(',')->check(CLI::NonNegativeNumber);
  app->add_option("--hosts", to->hosts,
                  "Instead of these: a table with the columns ranks, "
                  "line_gbps, hosts")
      ->excludes(per_host)
      ->excludes(lines);
  app->add_option("--mode", to->modes, "dense, csc")
      ->delimiter(',')
      ->check(CLI::IsMember({"dense", "csc"}));
  const std::string types(GradientTypeNames());
  app->add_option("--wire", to->wires, types)
      ->delimiter(',')
      ->check([types](const std::string& name) {
        return ParseGradientType(name) ? "" : "expected " + types;
      });
  app->add_option("--sparsity", to->sparsity,
                  "What CSC keeps back. Default: 0.85")
      ->check(CLI::Range(0.0, 0.999));
  app->add_option("--bucket-bytes", to->bucket_bytes,
                  "Bytes, inf, or auto (the default): the best size")
      ->delimiter(',');
  app->add_flag("--after", to->after, "Exchange after backward, not under it");
}

using Command = Result<std::string> (*)(const Arguments&);

// Adds all commands; returns each with what runs it.
std::vector<std::pair<CLI::App*, Command>> AddCommands(CLI::App* app,
                                                       Arguments* to) {
  CLI::App* predict = app->add_subcommand(
      "predict", "The time of a step, and where it goes, by ranks");
  AddFiles(predict, to);
  AddCluster(predict, to);
  predict
      ->add_option("--ranks", to->ranks,
                   "2,4,...; 1 to 65536 each. Default: 2 to 64, or all of the "
                   "hosts that are listed")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostRanks));
  CLI::App* advise = app->add_subcommand(
      "advise", "How many hosts to rent, and what the answer depends on");
  AddFiles(advise, to);
  AddCluster(advise, to);
  advise->add_option("--price", to->price, "What a node costs")->required();
  advise->add_option("--samples", to->samples, "To train on, epochs included")
      ->required();
  advise->add_option("--deadline", to->deadline, "6h, 90m, 30s");
  advise->add_option("--budget", to->budget, "In the currency of the price")
      ->check(CLI::PositiveNumber);
  advise->add_option("--max-hosts", to->most_hosts, "Default: 64")
      ->check(CLI::Range(1, 4096));
  CLI::App* usl = app->add_subcommand(
      "usl", "Summarises runs by the Universal Scalability Law");
  usl->add_option("--csv", to->csv, "ranks,samples_per_second")->required();
  usl->add_option("--ranks", to->usl_ranks, "The law's rates of these")
      ->delimiter(',');
  CLI::App* check =
      app->add_subcommand("check", "Predictions compared with measured runs");
  AddFiles(check, to);
  check->add_option("--csv", to->csv, "Runs that were made")->required();
  check
      ->add_option("--line-gbps", to->line_of_runs_gbps,
                   "The line of all hosts. Default: as probed")
      ->check(CLI::NonNegativeNumber);
  CLI::App* paper = app->add_subcommand(
      "paper", "How well the model predicts the paper's measurements");
  paper->add_option("--data", to->data, "The repository's benchmarks/data");
  return {{predict, &RunPredict},
          {advise, &RunAdvise},
          {usl, &RunUsl},
          {check, &RunCheck},
          {paper, &RunPaper}};
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Says what training will take on a cluster that was not rented yet, from "
      "a profile, a probe and a price.",
      "gradientflow_plan");
  app.require_subcommand(1);
  Arguments arguments;
  const auto commands = AddCommands(&app, &arguments);
  for (const auto& [command, run] : commands) {
    command->add_flag("--json", arguments.json, "JSON");
    // For some commands --csv is the file that they read.
    const bool reads = command->get_option_no_throw("--csv") != nullptr;
    command->add_flag(reads ? "--csv-out" : "--csv", arguments.csv_out,
                      "The main table as CSV");
  }
  CLI11_PARSE(app, argc, argv);
  for (const auto& [command, run] : commands) {
    if (!command->parsed()) continue;
    const auto out = run(arguments);
    if (out.ok()) {
      std::cout << out.value();
      return 0;
    }
    std::cerr << "gradientflow_plan: " << out.status().message() << "\n";
  }
  return 1;
}

}  // namespace
}  // namespace gradientflow::planner

int main(int argc, char** argv) {
  return gradientflow::planner::Main(argc, argv);
}
