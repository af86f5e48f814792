#pragma once

#include <string>
#include <string_view>

namespace gradientflow {

// What the program that started this process says about the job, as far as its
// environment variables tell. Understands torchrun, Open MPI (4 and 5) and
// Slurm's srun; the innermost wins where they are nested, in this order.
struct Launch {
  std::string who;  // "torchrun", "Open MPI", "Slurm"; empty: nobody.
  int rank = -1;    // Both, or neither.
  int size = -1;
  std::string rank_variable;  // Where they came from: "RANK".
  std::string size_variable;
  std::string identity_problem;  // Why there is no rank, if that is an error.

  std::string rendezvous;          // As Options::rendezvous; empty: not known.
  std::string rendezvous_from;     // The variables it was made of.
  std::string rendezvous_problem;  // Why there is none, and what to do.

  std::string job_token;  // Differs between jobs; empty: not known.
  std::string job_token_from;
};

// Pure. `environ`: null-terminated "NAME=value" strings. A variable that is
// empty counts as unset.
//
// The rendezvous is MASTER_ADDR:MASTER_PORT where those are set, whoever set
// them; the port after it if torchrun's agent listens on MASTER_PORT itself
// (TORCHELASTIC_USE_AGENT_STORE=True). Else, for Open MPI, if all ranks are on
// one host, 127.0.0.1 and a port made of the job id; for Slurm, the step's
// first host and a port made of the job and step ids. Such ports lie in
// 20000..29999 and may, rarely, be taken: GRADIENTFLOW_RENDEZVOUS overrides.
Launch DetectLauncher(const char* const* environ);

// The first host of a Slurm list: "node03" for "node[03-05,9],login1".
// Empty if the list is damaged.
std::string FirstSlurmHost(std::string_view list);

}  // namespace gradientflow
