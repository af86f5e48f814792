#include "gradientflow/config/launcher.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/environment.h"
#include "gradientflow/config/text_values.h"

namespace gradientflow {
namespace {

constexpr std::string_view kSetOurs =
    "; GRADIENTFLOW_RANK and GRADIENTFLOW_SIZE override";

// The two variables by which a launcher tells a process its rank and the size.
struct Pair {
  std::string_view who;
  std::string_view rank;
  std::string_view size;
};

// Slurm's own steps (batch, interactive, extern) have numbers from here on. A
// shell in such a step is not a rank.
constexpr std::uint64_t kFirstSlurmInternalStep = 0xFFFFFFF0;

bool IsSlurmTask(const Environment& env) {
  const auto step = ParseUnsigned(env.Get("SLURM_STEP_ID"));
  return step && *step < kFirstSlurmInternalStep;
}

std::array<Pair, 3> Pairs(const Environment& env) {
  std::array<Pair, 3> pairs = {
      {{"torchrun", "RANK", "WORLD_SIZE"},
       {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
       {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}};
  if (!IsSlurmTask(env)) {
    pairs[2] = {};
  } else if (env.Get(pairs[2].size).empty()) {
    pairs[2].size = "SLURM_NTASKS";
  }
  return pairs;
}

std::optional<int> ParseCount(std::string_view text) {
  const auto value = ParseUnsigned(text);
  if (!value || *value > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*value);
}

void ReadIdentity(const Environment& env, const Pair& pair, Launch* launch) {
  launch->who = pair.who;
  launch->rank_variable = pair.rank;
  launch->size_variable = pair.size;
  const auto rank = ParseCount(env.Get(pair.rank));
  const auto size = ParseCount(env.Get(pair.size));
  if (rank && size && *rank < *size) {
    launch->rank = *rank;
    launch->size = *size;
    return;
  }
  launch->identity_problem =
      StrCat(pair.rank, "='", env.Get(pair.rank), "' and ", pair.size, "='",
             env.Get(pair.size), "' (", pair.who,
             "): expected a rank from 0 to less than the size", kSetOurs);
}

// Job scripts often export just RANK or WORLD_SIZE for programs that want it.
// That is fine as long as it agrees with the launcher that sets both.
void CheckHalf(const Environment& env, const Pair& half, Launch* launch) {
  const auto check = [&](std::string_view name, int value,
                         const std::string& other) {
    const std::string_view text = env.Get(name);
    if (text.empty() || ParseCount(text) == value) return;
    launch->identity_problem =
        StrCat(name, "='", text, "' contradicts ", other, "=", value, " (",
               launch->who, ")", kSetOurs);
    launch->rank = launch->size = -1;
  };
  if (launch->rank < 0) return;
  check(half.rank, launch->rank, launch->rank_variable);
  if (launch->rank < 0) return;
  check(half.size, launch->size, launch->size_variable);
}

void DetectIdentity(const Environment& env, Launch* launch) {
  std::optional<Pair> half;
  for (const Pair& pair : Pairs(env)) {
    if (pair.who.empty()) continue;
    const bool has_rank = !env.Get(pair.rank).empty();
    const bool has_size = !env.Get(pair.size).empty();
    if (has_rank && has_size) {
      ReadIdentity(env, pair, launch);
      break;
    }
    if ((has_rank || has_size) && !half) half = pair;
  }
  if (!half) return;
  if (!launch->who.empty()) return CheckHalf(env, *half, launch);
  const bool has_rank = !env.Get(half->rank).empty();
  launch->identity_problem =
      StrCat(has_rank ? half->rank : half->size, " is set, but ",
             has_rank ? half->size : half->rank, " is not (", half->who,
             "): set both or neither", kSetOurs);
}

std::string Address(std::string_view host, std::uint64_t port) {
  const bool bare_ipv6 =
      host.find(':') != host.npos && !host.empty() && host.front() != '[';
  return bare_ipv6 ? StrCat("[", host, "]:", port) : StrCat(host, ":", port);
}

// These ports are below the usual ephemeral ports, which start at 32768.
std::uint64_t PortFor(std::string_view job) {
  return 20000 + HashText(job) % 10000;
}

void RendezvousFromMaster(const Environment& env, Launch* launch) {
  const std::string_view host = env.Get("MASTER_ADDR");
  const std::string_view text = env.Get("MASTER_PORT");
  launch->rendezvous_from = "MASTER_ADDR, MASTER_PORT";
  if (host.empty() || text.empty()) {
    launch->rendezvous_problem =
        host.empty() ? "MASTER_PORT is set, but MASTER_ADDR is not"
                     : "MASTER_ADDR is set, but MASTER_PORT is not";
    return;
  }
  const bool agent_listens =
      Lower(env.Get("TORCHELASTIC_USE_AGENT_STORE")) == "true";
  const std::uint64_t offset = agent_listens ? 1 : 0;
  const auto port = ParseUnsigned(text);
  if (!port || *port < 1 || *port > 65535 - offset ||
      !IsRendezvous(Address(host, *port + offset))) {
    launch->rendezvous_problem = StrCat(
        "MASTER_ADDR='", host, "' and MASTER_PORT='", text,
        "': expected a host and a port from 1 to ", 65535 - offset,
        agent_listens ? " (the next one is used: the agent has this one)" : "");
    return;
  }
  launch->rendezvous = Address(host, *port + offset);
  if (agent_listens) launch->rendezvous_from += " + 1";
}

void RendezvousFromOpenMpi(const Environment& env, std::string_view job,
                           Launch* launch) {
  const std::string_view local = env.Get("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (local == env.Get("OMPI_COMM_WORLD_SIZE") && !job.empty()) {
    launch->rendezvous = Address("127.0.0.1", PortFor(job));
    launch->rendezvous_from = "all ranks on one host";
    return;
  }
  launch->rendezvous_problem = StrCat(
      "Open MPI does not tell where rank 0 runs when ranks are on "
      "several hosts (",
      local.empty() ? "?" : local, " of ", env.Get("OMPI_COMM_WORLD_SIZE"),
      " are on this one)");
}

void RendezvousFromSlurm(const Environment& env, std::string_view job,
                         Launch* launch) {
  std::string_view name = "SLURM_STEP_NODELIST";
  if (env.Get(name).empty()) name = "SLURM_NODELIST";
  // On a single node, a host name that resolves to 127.0.1.1 there would also
  // do, but it may not resolve at all.
  const std::string host = env.Get("SLURM_STEP_NUM_NODES") == "1"
                               ? "127.0.0.1"
                               : FirstSlurmHost(env.Get(name));
  launch->rendezvous_from = name;
  if (job.empty()) {
    launch->rendezvous_problem = "SLURM_JOB_ID is not set";
  } else if (host.empty()) {
    launch->rendezvous_problem =
        StrCat(name, "='", env.Get(name), "': expected a list of hosts");
  } else {
    launch->rendezvous = Address(host, PortFor(job));
  }
}

// Finds what tells this job from others, by launcher; nothing if nothing does.
void DetectJobId(const Environment& env, Launch* launch) {
  std::string& from = launch->job_token_from;
  std::string& token = launch->job_token;
  if (launch->who == "torchrun") {
    from = "TORCHELASTIC_RUN_ID";
    const std::string_view id = env.Get(from);
    if (id != "none") token = id;  // torchrun's default.
  } else if (launch->who == "Open MPI") {
    from = "PMIX_NAMESPACE";
    if (env.Get(from).empty()) from = "OMPI_MCA_ess_base_jobid";
    token = env.Get(from);
    // A random number per job, which Open MPI 5 no longer has.
    const std::string_view random =
        env.Get("OMPI_MCA_orte_precondition_transports");
    launch->guessable = !token.empty() && random.empty();
    if (!token.empty() && !random.empty()) token += StrCat(".", random);
  } else if (launch->who == "Slurm") {
    from = "SLURM_JOB_ID, SLURM_STEP_ID";
    token = env.Get("SLURM_JOB_ID");
    launch->guessable = !token.empty();
    if (!token.empty()) token += StrCat(".", env.Get("SLURM_STEP_ID"));
  }
}

// Returns how often the launcher has restarted the job. Processes of an earlier
// time may still be there.
std::string_view Restarts(const Environment& env, const Launch& launch) {
  if (launch.who == "torchrun") return env.Get("TORCHELASTIC_RESTART_COUNT");
  if (launch.who == "Slurm") return env.Get("SLURM_RESTART_COUNT");
  return {};
}

void DetectRendezvous(const Environment& env, std::string_view job,
                      Launch* launch) {
  if (!env.Get("MASTER_ADDR").empty() || !env.Get("MASTER_PORT").empty()) {
    RendezvousFromMaster(env, launch);
  } else if (launch->who == "Open MPI") {
    RendezvousFromOpenMpi(env, job, launch);
  } else if (launch->who == "Slurm") {
    RendezvousFromSlurm(env, job, launch);
  } else {
    launch->rendezvous_problem = "the ranks do not know where to meet";
  }
  if (!launch->rendezvous_problem.empty()) {
    launch->rendezvous_problem +=
        ": set GRADIENTFLOW_RENDEZVOUS=host:port, or MASTER_ADDR and "
        "MASTER_PORT, to where rank 0 can listen";
  }
}

}  // namespace

Launch DetectLauncher(const char* const* variables) {
  const Environment env(variables);
  Launch launch;
  DetectIdentity(env, &launch);
  DetectJobId(env, &launch);
  if (launch.rank >= 0) {
    launch.job_run = StrCat(launch.job_token, " ", Restarts(env, launch));
  }
  DetectRendezvous(env, launch.job_token, &launch);
  return launch;
}

std::string FirstSlurmHost(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    // "[03-05,9]" is replaced by its first number.
    const std::size_t close = list.find(']');
    if (close == list.npos) return "";
    const std::string_view range = list.substr(1, close - 1);
    const std::string_view first = range.substr(0, range.find_first_of("-,"));
    if (!ParseUnsigned(first)) return "";
    host += first;
    list.remove_prefix(close + 1);
  }
  return IsRendezvous(host + ":1") ? host : "";
}

}  // namespace gradientflow
