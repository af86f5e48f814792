#include "gradientflow/config/options.h"

#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/load_options.h"
#include "gradientflow/config/settings_table.h"
#include "transports/tcp/addresses.h"

namespace gradientflow {
namespace {

Status Bad(std::string text) {
  return Status(StatusCode::kInvalidArgument, std::move(text));
}

Status CheckJob(const Options& options) {
  if (options.rank < 0 || options.size < 0) {
    return Bad(!options.rank_problem.empty()
                   ? options.rank_problem
                   : "rank and size are not set: set both, or use "
                     "Options::FromEnv()");
  }
  if (options.rank >= options.size) {
    return Bad(StrCat("rank: expected 0..", options.size - 1, ", as size is ",
                      options.size, ", got ", options.rank));
  }
  if (options.size > 1 && options.rendezvous.empty()) {
    if (!options.rendezvous_problem.empty()) {
      return Bad(options.rendezvous_problem);
    }
    return Bad(
        StrCat("rendezvous: expected host:port or file:///directory, "
               "as size is ",
               options.size, ", got ''"));
  }
  if (options.size > 1 && options.job_token.empty() &&
      options.ReachesOtherHosts()) {
    return Bad(
        StrCat("job_token: expected a secret text, the same on all ranks, "
               "since anybody who reaches rendezvous=",
               options.rendezvous,
               " could join without one, and the launcher gives none: set "
               "GRADIENTFLOW_JOB_TOKEN, for example to what `openssl rand "
               "-hex 16` prints, got ''"));
  }
  if (options.size > 1 && !options.timeline.empty() &&
      options.timeline.find("%r") == std::string::npos) {
    return Bad(
        StrCat("timeline: expected %r (the rank) in the name, as size "
               "is ",
               options.size, " and each rank writes a file, got '",
               options.timeline, "'"));
  }
  return Status();
}

Status CheckSparse(const Options& options) {
  if (options.sparsity > 0 && options.residual == ResidualMode::kMomentum &&
      !(options.momentum > 0)) {
    return Bad(
        "momentum: expected more than 0, as sparsity is on and residual is "
        "momentum; without momentum set residual to plain");
  }
  if (options.accumulate && options.zero_kept) {
    return Bad(
        "zero_kept: expected off, as accumulate is on: gradients that are kept "
        "back stay in the pool");
  }
  return Status();
}

}  // namespace

Result<Options> Options::FromEnv(const char* const* variables) {
  LoadedOptions loaded = LoadOptions(variables);
  GF_RETURN_IF_ERROR(loaded.status());
  return std::move(loaded.options);
}

Status Options::Validate() const {
  GF_RETURN_IF_ERROR(ValidateValues());
  return CheckJob(*this);
}

bool Options::ReachesOtherHosts() const {
  return !rendezvous.starts_with("file://") && !IsOfThisHostOnly(rendezvous);
}

Status Options::ValidateValues() const {
  // The parsers of the table know the range of each field: a value that a
  // parser does not take back is not valid.
  Options scratch;
  for (const auto& [name, text] : transport_settings) {
    const Setting* setting = FindSetting(name);
    if (setting == nullptr || setting->name != name ||
        setting->of_transport == nullptr) {
      return Bad(StrCat("transport_settings: '", name,
                        "' is no setting of a transport"));
    }
  }
  for (const Setting& setting : Settings()) {
    const std::string text = setting.Print(*this);
    if (!setting.Parse(text, &scratch)) {
      return Bad(BadValueText(setting.name, setting, text));
    }
  }
  return CheckSparse(*this);
}

}  // namespace gradientflow
