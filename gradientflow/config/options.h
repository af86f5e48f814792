#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/observe/logger.h"

namespace gradientflow {

// Whether gradients can be multiplied with this loss scale, and divided by it.
inline bool IsLossScale(float scale) {
  return scale > 0 && std::isfinite(scale) && std::isfinite(1.0F / scale);
}

// How ranks with GPUs exchange data in GPU memory.
enum class DeviceCollectives : std::uint8_t { kAuto, kNccl, kStaged };
// Which side adds up gradients of 16 bits that NCCL carries.
enum class DeviceSums : std::uint8_t { kFloat32, kNccl };
// Ports from `first` to `last`; 0 and 0: any that is free.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
};

enum class AddressFamily : std::uint8_t { kAny, kIpv4, kIpv6 };
enum class ConnectMode : std::uint8_t { kAuto, kAll, kNeeded };

// What happens to the gradients of an unselected chunk (CSC).
enum class ResidualMode : std::uint8_t {
  // They are kept back and decayed by `momentum`, for the chunk-aware
  // optimisers (Algorithm 1 of arXiv 1902.06855). The pool keeps local values
  // there.
  kMomentum,
  // They are kept back undecayed, and become zero in the pool: for any other
  // optimiser.
  kPlain,
};

inline constexpr std::size_t kAutoBytes =
    std::numeric_limits<std::size_t>::max() - 1;
inline constexpr std::size_t kInfiniteBytes =
    std::numeric_limits<std::size_t>::max();

// Everything that can be configured, with its default. Plain data, filled in by
// code or by FromEnv(), then handed to Communicator::Open() and
// GradientSession::Open(). Nothing else reads the environment. Each field is
// set by GRADIENTFLOW_<FIELD>, in capitals.
struct Options {
  // -- The job ------------------------------------------------------------
  int rank = -1;  // This process; -1: from the launcher.
  int size = -1;  // Number of ranks; -1: from the launcher, or 1.
  // Where ranks meet: "host:port" (rank 0 listens there) or
  // "file:///shared/directory". Empty: from the launcher's variables.
  std::string rendezvous;
  // Set by FromEnv() if the environment says nothing, or not all, of which rank
  // this process is or where ranks meet: the text of the error that Validate()
  // returns. A program that sets rank, size and rendezvous itself gets no
  // error.
  std::string rank_problem;
  std::string rendezvous_problem;
  // The secret by which the ranks of a job recognise each other; never sent.
  // Empty: none, which is enough where only one host, or one directory, can
  // reach the rendezvous.
  std::string job_token;
  // Set by FromEnv(): the launcher's id of the job, if it stands in for a token
  // although other users of the cluster can list or guess it.
  std::string guessable_token;
  // Set by FromEnv() if the launcher gave this process its rank: the launcher's
  // id of this run of the job. Ranks of another run cannot join.
  std::string job_run;
  // Ranks with equal host ids share memory. Empty: detected.
  std::string host_id;

  // -- The fabric ---------------------------------------------------------
  // The only transport that may be used, by its name in transports/registry, or
  // "auto": shared memory inside a host; between hosts RDMA where both have it,
  // else TCP.
  std::string fabric = "auto";
  // Interfaces for TCP, as a list of prefixes; a leading ^ excludes them.
  // Empty: all that are up, and loopback only if there is no other.
  std::string socket_ifname;
  AddressFamily socket_family = AddressFamily::kAny;
  // The host name or address by which other ranks reach this one, if no
  // interface here has it. Empty: the addresses of the interfaces.
  std::string advertise_address;
  PortRange port_range;  // Where TCP listens.
  // When ranks connect to each other: kAll, at opening; kNeeded, at opening to
  // their neighbours (see NeighboursOf() in communicator/neighbours.h), and to
  // others with the first message. Few links open faster and need fewer file
  // descriptors; the first message to another rank takes longer. kAuto: all
  // among up to 64 ranks.
  ConnectMode connect = ConnectMode::kAuto;
  int connections = 0;  // TCP connections per peer; 0: by number of ranks.
  std::size_t socket_buffer_bytes = 0;  // 0: the kernel's tuning.
  // Threads that move the bytes of large TCP messages for the thread that
  // drives; 0: it moves them itself; -1: see ChooseIoThreads() in
  // transports/tcp/io_threads.h. Ranks may differ.
  int io_threads = -1;
  // Settings of a single transport, by name, as text: RDMA's are in
  // transports/rdma/settings.cc. Those that are not here have their defaults.
  std::map<std::string, std::string, std::less<>> transport_settings;
  // Unit of pipelining inside a collective, among up to 8 ranks; with more it
  // grows (see CutOf() in collectives/choose.h). Smaller segments overlap
  // better, larger ones have less overhead.
  std::size_t segment_bytes = std::size_t{256} << 10;
  int segments_in_flight = 8;  // Bounds the memory beyond the pool.
  // Address space that each rank reserves for memory shared with its host.
  std::size_t arena_bytes = std::size_t{64} << 30;
  std::size_t fifo_bytes = std::size_t{1} << 20;  // Per pair and direction.
  // How long to poll before blocking. -1: 50 us if this host has a core for
  // each of its ranks, else 0.
  int spin_microseconds = -1;

  // -- The device ---------------------------------------------------------
  // Where the gradient pool lives: "cpu", "cuda" (the ranks of a host take its
  // GPUs in turn) or "cuda:N". Ranks may differ.
  std::string device = "cpu";
  // kAuto: NCCL if every rank has the library and a GPU of its own, else
  // staged: compressed on the GPU, then sent by shared memory, RDMA or TCP.
  DeviceCollectives device_collectives = DeviceCollectives::kAuto;
  // kFloat32: our own kernel adds in float32 and rounds once; NCCL carries the
  // parts. A rank sends as many bytes as in a ring, but to all ranks: each of
  // the g GPUs of a host sends to all other hosts, so up to g times as much
  // leaves the host in the first of two phases. kNccl: NCCL adds, and rounds
  // each partial sum to 16 bits.
  DeviceSums device_sums = DeviceSums::kFloat32;
  // NCCL's kernels read and write the staging memory of other ranks in place,
  // where NCCL (2.27 or newer) and the links between the GPUs allow it. The
  // same on all ranks.
  bool nccl_windows = true;
  // Path. Empty: libnccl.so.2, as the loader finds it.
  std::string nccl_library;

  // -- Gradients ----------------------------------------------------------
  DType pool_dtype = DType::kFloat32;
  DType wire_dtype = DType::kFloat32;
  ReduceOp reduce = ReduceOp::kMean;  // kMean or kSum.
  // theta: a bucket is sent once it holds MORE than this, in wire bytes. 0:
  // every tensor by itself; kInfiniteBytes: one allreduce after backward;
  // kAutoBytes: computed from measured latency, bandwidth and backward times.
  std::size_t bucket_bytes = kAutoBytes;
  bool overlap = true;  // Send during backward.
  // Backward adds to what the pool holds, instead of writing over it: with CSC
  // the pool itself keeps back what is not sent. See
  // GradientSession::ZeroGradients().
  bool accumulate = false;
  // Threads that share the CPU's passes over gradients, the calling one
  // included; 0: the host's cores divided by its ranks, at most 8. Any number
  // gives the same bits.
  int compute_threads = 0;
  // The factor by which the framework multiplied the loss: aggregated gradients
  // are divided by it, in float32. Gradients in a 16-bit pool are divided when
  // they are used; see StepStats::gradient_scale.
  float loss_scale = 1.0F;  // REQUIRES: IsLossScale().
  // The algorithm of every allreduce that does not name one: "auto", or a name
  // in gradientflow/collectives/allreduce/table.h.
  std::string algorithm = "auto";

  // -- Coarse-grained sparse communication --------------------------------
  float sparsity = 0.0F;  // Share of chunks kept back, [0, 1); 0: dense.
  std::size_t chunk_elements = 32000;
  std::uint64_t warmup_steps = 0;  // Sparsity rises linearly over these.
  ResidualMode residual = ResidualMode::kMomentum;
  float momentum = 0.9F;  // Decay of what is kept back (kMomentum).
  // Kept gradients read as zero, and all of a skipped step as NaN (kPlain:
  // always).
  bool zero_kept = false;

  // -- Failure ------------------------------------------------------------
  // For a peer that is alive but does not come to a collective.
  double timeout_seconds = 600;
  // For a peer whose process does not answer (stopped or cut off).
  double heartbeat_timeout_seconds = 30;
  double stall_check_seconds = 60;    // Warns, with awaited ranks and tensors.
  double join_timeout_seconds = 120;  // For all ranks to meet.

  // -- Logging and tracing ---------------------------------------------------
  LogLevel log_level = LogLevel::kWarning;
  std::string timeline;  // Chrome trace, "%r" becomes the rank; empty: none.
  bool trace_collectives = false;  // One line each, at level info.
  // The file that a session's profile is written to: what the model computes,
  // as gradientflow_plan reads it. With "%r", which becomes the rank, each rank
  // writes one, else rank 0 does. Empty: none.
  std::string profile;
  std::uint64_t profile_batch = 0;  // Samples per rank and step; 0: not known.

  // Takes the defaults, then every GRADIENTFLOW_* variable of `variables`, then
  // the launcher's variables (torchrun, Open MPI, Slurm) if rank, size and
  // rendezvous are still unset. `variables` is an array of "NAME=value" strings
  // that ends with null.
  // kInvalidArgument names the variable, its value and what was expected. An
  // unknown GRADIENTFLOW_* variable is an error, too, which names the nearest
  // known one. If the launcher's variables are incomplete, the fields stay
  // unset; Validate() then says what is missing.
  static Result<Options> FromEnv(const char* const* variables);

  // Returns kInvalidArgument if a field is out of range, or if fields that a
  // session uses do not fit together.
  Status ValidateValues() const;
  // The same, and also if fields do not fit a communicator, which needs a rank
  // within the size and a rendezvous.
  Status Validate() const;
  // Returns whether processes of other hosts could come to the rendezvous,
  // which they may even if all ranks share memory.
  bool ReachesOtherHosts() const;
};

}  // namespace gradientflow
