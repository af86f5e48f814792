#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/observe/logger.h"

namespace gradientflow {

// How ranks on GPUs exchange what is in their memory.
enum class DeviceCollectives : std::uint8_t { kAuto, kNccl, kStaged };
enum class AddressFamily : std::uint8_t { kAny, kIpv4, kIpv6 };

// What an unselected chunk's gradients become (CSC).
enum class ResidualMode : std::uint8_t {
  // Kept back and decayed by `momentum`, with the chunk-aware optimisers
  // (Algorithm 1 of arXiv 1902.06855). The pool keeps local values there.
  kMomentum,
  // Kept back undecayed and zero in the pool: for any other optimiser.
  kPlain,
};

inline constexpr std::size_t kAutoBytes =
    std::numeric_limits<std::size_t>::max() - 1;
inline constexpr std::size_t kInfiniteBytes =
    std::numeric_limits<std::size_t>::max();

// All that can be configured, with its default. Plain data: filled in by code
// or by FromEnv(), then handed to Communicator::Open()
// and GradientSession::Open(). Nothing else reads the
// environment. Each field is set by GRADIENTFLOW_<FIELD>, in capitals.
struct Options {
  // -- The job ------------------------------------------------------------
  int rank = -1;  // This process; -1: from the launcher's variables.
  int size = -1;  // Ranks in the job; -1: likewise. No launcher: one rank.
  // Where ranks meet: "host:port" (rank 0 listens there) or
  // "file:///shared/directory". Empty: from the launcher's variables.
  std::string rendezvous;
  // By FromEnv(), if the environment says who this process is, or where ranks
  // meet, only in part or not at all: the text for whoever needs it, and no
  // error for a program that sets rank and size, or has the ranks meet itself.
  std::string rank_problem;
  std::string rendezvous_problem;
  // Ranks with another token cannot join: set one per job.
  std::string job_token = "gradientflow";
  // Ranks with equal host ids share memory. Empty: found out.
  std::string host_id;

  // -- The fabric ---------------------------------------------------------
  // The one transport that may be used, by its name in transports/registry; or
  // "auto": shared memory inside a host, TCP between hosts.
  std::string fabric = "auto";
  // Interfaces for TCP, a list of prefixes; a leading ^ excludes. Empty: all
  // that are up, loopback only when nothing else is.
  std::string socket_ifname;
  AddressFamily socket_family = AddressFamily::kAny;
  int connections = 0;  // TCP connections per peer; 0: by number of ranks.
  std::size_t socket_buffer_bytes = 0;  // 0: the kernel's own tuning.
  // Unit of pipelining inside a collective. Smaller overlaps better, larger
  // has less overhead.
  std::size_t segment_bytes = std::size_t{256} << 10;
  int segments_in_flight = 8;  // Bounds the memory beyond the pool.
  // Address space each rank reserves for memory shared with its host.
  std::size_t arena_bytes = std::size_t{64} << 30;
  std::size_t fifo_bytes = std::size_t{1} << 20;  // Per pair and direction.
  // Busy-wait before blocking; -1: 50 us if there is a core per rank of the
  // host, else 0.
  int spin_microseconds = -1;

  // -- The device ---------------------------------------------------------
  // Where the gradient pool lives: "cpu", "cuda" (this host's ranks take its
  // GPUs in turn) or "cuda:N". Ranks may differ.
  std::string device = "cpu";
  // kAuto: NCCL where every rank has a GPU of its own and the library, else
  // staged: compressed on the GPU, then by shared memory and TCP.
  DeviceCollectives device_collectives = DeviceCollectives::kAuto;
  std::string
      nccl_library;  // Path; empty: libnccl.so.2 as the loader finds it.

  // -- Gradients ----------------------------------------------------------
  DType pool_dtype = DType::kFloat32;
  DType wire_dtype = DType::kFloat32;
  ReduceOp reduce = ReduceOp::kMean;  // kMean or kSum.
  // theta: a bucket leaves once it holds MORE than this. 0: every tensor by
  // itself; kInfiniteBytes: one allreduce after backward; kAutoBytes: from
  // measured latency, bandwidth and backward times. Counted in wire bytes.
  std::size_t bucket_bytes = kAutoBytes;
  bool overlap = true;  // Send while backward still runs.
  // Divides the aggregated gradients (the framework multiplied the loss), in
  // float32: in a pool of 16 bits as they are used, StepStats::gradient_scale.
  float loss_scale = 1.0F;
  // How every allreduce runs that does not ask for an algorithm itself: "auto",
  // or a name of gradientflow/collectives/allreduce/table.h.
  std::string algorithm = "auto";

  // -- Coarse-grained sparse communication --------------------------------
  float sparsity = 0.0F;  // Share of chunks kept back, [0, 1); 0: dense.
  std::size_t chunk_elements = 32000;
  std::uint64_t warmup_steps = 0;  // Sparsity rises linearly over these.
  ResidualMode residual = ResidualMode::kMomentum;
  float momentum = 0.9F;   // Decay of what is kept back (kMomentum).
  bool zero_kept = false;  // What is kept back reads as zero (kPlain: always).

  // -- Failure ------------------------------------------------------------
  // A peer that is alive but does not come to a collective.
  double timeout_seconds = 600;
  // A peer whose process does not answer (stopped, cut off).
  double heartbeat_timeout_seconds = 30;
  double stall_check_seconds = 60;    // Warn, with ranks and tensors awaited.
  double join_timeout_seconds = 120;  // For all ranks to meet.

  // -- Sight --------------------------------------------------------------
  LogLevel log_level = LogLevel::kWarning;
  std::string timeline;  // Chrome trace, "%r" becomes the rank. Empty: none.
  bool trace_collectives = false;  // One line each, at level info.

  // Defaults, then every GRADIENTFLOW_* variable of `environ`, then, for rank,
  // size and rendezvous still unset, the launcher's (torchrun, Open MPI,
  // Slurm). `environ`: null-terminated "NAME=value" strings.
  // kInvalidArgument names the variable, its value and what was expected; an
  // unknown GRADIENTFLOW_* is an error too, with the nearest known name. What
  // the launcher says in part is left unset, and is Validate()'s to refuse.
  static Result<Options> FromEnv(const char* const* environ);

  // Checks every field's range, and what a session needs of them together.
  Status ValidateValues() const;
  // The same, and what a communicator needs: rank within size, a rendezvous.
  Status Validate() const;
};

}  // namespace gradientflow
