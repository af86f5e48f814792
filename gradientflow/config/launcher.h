#pragma once

#include <string>
#include <string_view>

namespace gradientflow {

// What the program that started this process says about the job in environment
// variables. Understands torchrun, Open MPI (4 and 5) and Slurm's srun. If they
// are nested, the innermost counts; they are tried in this order.
struct Launch {
  std::string who;  // "torchrun", "Open MPI", "Slurm" or "".
  int rank = -1;    // Both are set, or neither.
  int size = -1;
  std::string rank_variable;  // Where rank comes from: "RANK".
  std::string size_variable;
  std::string identity_problem;  // An error: why there is no rank.

  std::string rendezvous;          // As Options::rendezvous; may be empty.
  std::string rendezvous_from;     // The variables it was made from.
  std::string rendezvous_problem;  // Why there is none, and what to do.

  std::string job_token;  // Differs between jobs; may be empty.
  std::string job_token_from;
  // Whether other users of the cluster can list or guess it.
  bool guessable = false;
  // Differs between jobs, and between the restarts of one; may be empty.
  std::string job_run;
};

// Detects the launcher. Pure. `variables` is an array of "NAME=value" strings
// that ends with null. A variable that is empty counts as unset.
//
// The rendezvous is MASTER_ADDR:MASTER_PORT if these are set, whoever set them.
// If torchrun's agent listens on MASTER_PORT itself
// (TORCHELASTIC_USE_AGENT_STORE=True), it is the port after it. Otherwise, for
// Open MPI with all ranks on one host, it is 127.0.0.1 with a port made from
// the job id; for Slurm it is the first host of the step with a port made from
// the job and step ids. Such ports are in 20000..29999 and may, rarely, be
// taken; GRADIENTFLOW_RENDEZVOUS overrides them.
Launch DetectLauncher(const char* const* variables);

// Returns the first host of a Slurm list: "node03" for "node[03-05,9],login1".
// Empty if the list is damaged.
std::string FirstSlurmHost(std::string_view list);

}  // namespace gradientflow
