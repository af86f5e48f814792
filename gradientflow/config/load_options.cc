#include "gradientflow/config/load_options.h"

#include <cstddef>
#include <span>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/environment.h"
#include "gradientflow/config/launcher.h"
#include "gradientflow/config/settings_table.h"

namespace gradientflow {
namespace {

Origin& OriginOf(LoadedOptions* loaded, std::string_view name) {
  const Setting* setting = FindSetting(name);
  return loaded->origins[static_cast<std::size_t>(setting - Settings().data())];
}

void ReadOurVariable(const Environment& env, std::string_view entry,
                     LoadedOptions* loaded) {
  const std::size_t equals = entry.find('=');
  const std::string_view name = entry.substr(0, equals);
  if (equals == entry.npos) return;
  const Setting* setting = FindSetting(name);
  // Variables have one spelling, unlike the names that SetOption() takes.
  if (setting == nullptr || setting->variable() != name) {
    loaded->problems.push_back(UnknownNameText(name));
    return;
  }
  const std::string_view text = entry.substr(equals + 1);
  // A second entry of the same name does not count.
  if (env.Find(name)->data() != text.data()) return;
  if (!setting->Parse(text, &loaded->options)) {
    loaded->problems.push_back(BadValueText(name, *setting, text));
    return;
  }
  OriginOf(loaded, setting->name) = {Origin::Kind::kEnvironment, ""};
}

Origin FromLauncher(const Launch& launch, const std::string& variables) {
  return {
      Origin::Kind::kLauncher,
      StrCat(launch.who.empty() ? "launcher" : launch.who, ": ", variables)};
}

// Rank and size come together: both from GRADIENTFLOW_* variables, or both from
// the launcher, or a job of one rank.
void ResolveIdentity(const Launch& launch, LoadedOptions* loaded) {
  Options& options = loaded->options;
  if (options.rank >= 0 && options.size >= 0) return;
  if (options.rank >= 0 || options.size >= 0) {
    const bool has_rank = options.rank >= 0;
    options.rank_problem = StrCat(
        has_rank ? "GRADIENTFLOW_RANK" : "GRADIENTFLOW_SIZE", " is set, but ",
        has_rank ? "GRADIENTFLOW_SIZE" : "GRADIENTFLOW_RANK",
        " is not: set both or neither");
    return;
  }
  if (!launch.identity_problem.empty()) {
    options.rank_problem = launch.identity_problem;
    return;
  }
  if (launch.rank >= 0) {
    options.rank = launch.rank;
    options.size = launch.size;
    options.job_run = launch.job_run;
    OriginOf(loaded, "rank") = FromLauncher(launch, launch.rank_variable);
    OriginOf(loaded, "size") = FromLauncher(launch, launch.size_variable);
    return;
  }
  options.rank = 0;
  options.size = 1;
  OriginOf(loaded, "rank").detail = "no launcher";
  OriginOf(loaded, "size").detail = "no launcher";
}

// Independent of the size, because the program may set another size.
void ResolveMeeting(const Launch& launch, LoadedOptions* loaded) {
  Options& options = loaded->options;
  if (options.rendezvous.empty()) {
    options.rendezvous = launch.rendezvous;
    if (launch.rendezvous.empty()) {
      options.rendezvous_problem = launch.rendezvous_problem;
    } else {
      OriginOf(loaded, "rendezvous") =
          FromLauncher(launch, launch.rendezvous_from);
    }
  }
  Origin& token = OriginOf(loaded, "job_token");
  if (options.job_token.empty() && !launch.job_token.empty()) {
    options.job_token = launch.job_token;
    if (launch.guessable) options.guessable_token = launch.job_token;
    token = FromLauncher(launch, launch.job_token_from);
  }
}

}  // namespace

std::string Origin::ToString() const {
  switch (kind) {
    case Kind::kDefault:
      return detail.empty() ? "default" : StrCat("default (", detail, ")");
    case Kind::kEnvironment:
      return "environment";
    case Kind::kLauncher:
      return detail;
    case Kind::kProgram:
      return "program";
  }
  return "?";
}

Status LoadedOptions::status() const {
  if (problems.empty()) return Status();
  std::string text = problems.front();
  if (problems.size() > 1) {
    text = StrCat(problems.size(), " problems in the environment:");
    for (const std::string& problem : problems) text += "\n  " + problem;
  }
  return Status(StatusCode::kInvalidArgument, std::move(text));
}

Status LoadedOptions::Set(std::string_view name, std::string_view text) {
  GF_RETURN_IF_ERROR(SetOption(&options, name, text));
  OriginOf(this, name) = {Origin::Kind::kProgram, ""};
  return Status();
}

LoadedOptions LoadOptions(const char* const* variables) {
  LoadedOptions loaded;
  loaded.origins.resize(Settings().size());
  const Environment env(variables);
  for (auto entry = variables; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    if (line.substr(0, kVariablePrefix.size()) == kVariablePrefix) {
      ReadOurVariable(env, line, &loaded);
    }
  }
  const Launch launch = DetectLauncher(variables);
  ResolveIdentity(launch, &loaded);
  ResolveMeeting(launch, &loaded);
  return loaded;
}

}  // namespace gradientflow
