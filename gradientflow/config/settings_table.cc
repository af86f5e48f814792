#include "gradientflow/config/settings_table.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/config/setting_codecs.h"
#include "gradientflow/config/text_values.h"
#include "transports/registry/registry.h"

// One row per setting. A row names a codec (setting_codecs.h), which knows the
// field of Options and its range, and holds the section, the name and the texts
// for people. To add a setting, add a field to Options and a row here; those of
// one transport alone are rows in its folder.
namespace gradientflow {
namespace {

using Names = std::string_view;
constexpr std::array<Names, 3> kConnectNames = {"auto", "all", "needed"};
constexpr std::array<Names, 3> kFamilyNames = {"any", "ipv4", "ipv6"};
constexpr std::array<Names, 4> kLevelNames = {"error", "warning", "info",
                                              "debug"};
constexpr std::array<Names, 3> kCollectivesNames = {"auto", "nccl", "staged"};
constexpr std::array<Names, 2> kSumsNames = {"float32", "nccl"};
constexpr std::array<Names, 2> kResidualNames = {"momentum", "plain"};

constexpr std::uint64_t kMaxDevices = 1024;

bool AnyText(std::string_view) { return true; }
bool IsDevice(std::string_view text) {
  return text == "cpu" || text == "cuda" ||
         (text.substr(0, 5) == "cuda:" &&
          ParseUnsigned(text.substr(5)).value_or(kMaxDevices) < kMaxDevices);
}
bool IsAllreduce(const std::string& name) {
  return ParseAllreduceAlgorithm(name).ok();
}
bool IsTransport(const std::string& name) {
  return name == "auto" || FindTransport(name) != nullptr;
}
bool RendezvousOrEmpty(std::string_view text) {
  return text.empty() || IsRendezvous(text);
}

constexpr std::uint64_t kMaxRanks = 1U << 20;
constexpr std::uint64_t kBillion = 1000000000;
constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kTiB = std::size_t{1} << 40;

constexpr std::string_view kJob = "The job";
constexpr std::string_view kFabric = "The fabric";
constexpr std::string_view kDevice = "The device";
constexpr std::string_view kGradients = "Gradients";
constexpr std::string_view kSparse = "Coarse-grained sparse communication";
constexpr std::string_view kFailures = "Failures";
constexpr std::string_view kLogging = "Logging and tracing";
constexpr std::string_view kOnOff = "on or off";
// Placeholders for AllreduceNames(), TransportNames() and GradientTypeNames(),
// which a constant expression cannot call. SettingsTable() replaces them.
constexpr std::string_view kGradientTypes = "a gradient type";
constexpr std::string_view kAllreduceNames = "an allreduce's name";
constexpr std::string_view kTransportNames = "a transport's name";
constexpr std::string_view kShare = "a number from 0 to less than 1";
constexpr std::string_view kSeconds = "seconds, more than 0, at most 1e9";

template <typename Codec>
constexpr Setting Row(std::string_view section, std::string_view name,
                      std::string_view expected, std::string_view meaning) {
  return {name, section, expected, meaning, false, Codec::Parse, Codec::Print};
}

constexpr Setting Secret(Setting setting) {
  setting.secret = true;
  return setting;
}

namespace c = codecs;
using O = Options;

constexpr std::array kRows = {
    Row<c::IntegerOrAuto<&O::rank, 0, kMaxRanks - 1, -1>>(
        kJob, "rank", "an integer from 0 to 1048575, or auto",
        "This process's number, counted from 0. auto takes it from torchrun, "
        "Open MPI or Slurm, and is 0 without a launcher."),
    Row<c::IntegerOrAuto<&O::size, 1, kMaxRanks, -1>>(
        kJob, "size", "an integer from 1 to 1048576, or auto",
        "The number of ranks in the job. auto takes it from torchrun, Open "
        "MPI or Slurm, and is 1 without a launcher."),
    Row<c::Text<&O::rendezvous, RendezvousOrEmpty>>(
        kJob, "rendezvous",
        "host:port, [ipv6]:port, file:///directory, or nothing",
        "Where the ranks meet: an address on which rank 0 listens, or a "
        "directory that all ranks share. If empty, the launcher's address is "
        "used."),
    Secret(Row<c::Text<&O::job_token, AnyText>>(
        kJob, "job_token", "any text",
        "The secret by which the ranks of a job recognise each other; the "
        "same on all of them. Each connection proves it, and it is never "
        "sent. Required if a rendezvous by TCP can be reached from other "
        "hosts. If empty, torchrun's, Open MPI's or Slurm's id of the job "
        "takes its place, which others may guess. Gradients are not "
        "encrypted.")),
    Row<c::Text<&O::host_id, AnyText>>(
        kJob, "host_id", "any text",
        "Ranks with equal ids share memory. If empty, the host is detected. "
        "Give containers on one host different ids to keep them from "
        "sharing."),

    Row<c::Named<&O::fabric, IsTransport>>(
        kFabric, "fabric", kTransportNames,
        "auto uses shared memory inside a host, and between hosts RDMA where "
        "both have it and it works, else TCP. shm requires all ranks on one "
        "host; tcp is slower there, but needs no shared memory. rdma is an "
        "error where two ranks cannot use it."),
    Row<c::Text<&O::socket_ifname, AnyText>>(
        kFabric, "socket_ifname", "interface prefixes: eth0,ib or ^docker,lo",
        "Network interfaces for TCP; a leading ^ excludes the listed ones. "
        "If empty, all interfaces that are up, fast ones first, and loopback "
        "only if there is no other."),
    Row<c::Choice<&O::socket_family, kFamilyNames>>(
        kFabric, "socket_family", "any, ipv4 or ipv6",
        "Address families that TCP may use."),
    Row<c::Text<&O::advertise_address, AnyText>>(
        kFabric, "advertise_address", "a host name or an address, or nothing",
        "Where other ranks reach this one, if that is no address of its own: "
        "behind a translation of addresses, which must keep the ports. If "
        "empty, the addresses of the interfaces."),
    Row<c::Ports<&O::port_range>>(
        kFabric, "port_range", "two ports, as in 4000-4100, or any",
        "Ports at which TCP listens, for firewalls. Each rank of a host needs "
        "one for each interface. The port of the rendezvous is not among "
        "them."),
    Row<c::Choice<&O::connect, kConnectNames>>(
        kFabric, "connect", "auto, all or needed",
        "Which ranks connect when the job opens. all connects each to each. "
        "needed connects the ranks of a host, and ranks at distances of "
        "powers of two; others connect for their first message, which takes "
        "longer. With many ranks that opens faster and needs far fewer file "
        "descriptors. auto is all for up to 64 ranks, and needed for more."),
    Row<c::IntegerOrAuto<&O::connections, 1, 63, 0>>(
        kFabric, "connections", "an integer from 1 to 63, or auto",
        "TCP connections per peer. More connections fill a fast link better, "
        "but use more file descriptors. auto depends on the number of ranks."),
    Row<c::BytesOrKernel<&O::socket_buffer_bytes, kGiB>>(
        kFabric, "socket_buffer_bytes", "a size up to 1GB, or auto",
        "Send and receive buffer of each connection. Larger buffers fill "
        "links with long delays, and use that much memory per connection. "
        "auto leaves the size to the kernel."),
    Row<c::IntegerOrAuto<&O::io_threads, 0, 64, -1>>(
        kFabric, "io_threads", "an integer from 0 to 64, or auto",
        "Threads that move the bytes of TCP messages of 256KB or more, so that "
        "one core does not limit a fast line. With 0, the thread that drives "
        "moves them itself. Allreduces have such messages if segment_bytes is "
        "256KB times the number of ranks. auto is one per 10 Gb/s of the line, "
        "as its driver tells or as measured, and at most a quarter of this "
        "rank's share of the host's cores. Ranks may differ."),
    Row<c::Bytes<&O::segment_bytes, 4096, kGiB, 64>>(
        kFabric, "segment_bytes", "a multiple of 64 from 4KB to 1GB",
        "The unit of pipelining inside a collective. Smaller segments "
        "overlap better; larger ones have less overhead. Among more than 8 "
        "ranks segments grow, up to 8MB."),
    Row<c::Integer<&O::segments_in_flight, 1, 64>>(
        kFabric, "segments_in_flight", "an integer from 1 to 64",
        "The number of segments in progress at a time. More segments hide "
        "more delay, and each uses memory beyond the pool."),
    Row<c::Bytes<&O::arena_bytes, kGiB / 1024, 64 * kTiB>>(
        kFabric, "arena_bytes", "a size from 1MB to 64TB",
        "Address space that each rank reserves for memory shared with its "
        "host. It must hold the pool. Memory is used only as needed."),
    Row<c::Bytes<&O::fifo_bytes, 4096, kGiB>>(
        kFabric, "fifo_bytes", "a size from 4KB to 1GB",
        "Size of the shared-memory queue for each pair of ranks and "
        "direction. A larger queue lets senders run further ahead."),
    Row<c::IntegerOrAuto<&O::spin_microseconds, 0, 1000000, -1>>(
        kFabric, "spin_microseconds", "an integer from 0 to 1000000, or auto",
        "How long to busy-wait before blocking. This lowers latency and uses "
        "CPU time. auto is 50 if each rank on the host has a core, and 0 "
        "otherwise."),

    Row<c::Text<&O::device, IsDevice>>(
        kDevice, "device", "cpu, cuda or cuda:N",
        "Where the gradient pool lives. cuda assigns the host's GPUs to its "
        "ranks in turn. Ranks may differ."),
    Row<c::Choice<&O::device_collectives, kCollectivesNames>>(
        kDevice, "device_collectives", "auto, nccl or staged",
        "How GPUs exchange gradients. nccl needs one GPU per rank. staged "
        "compresses on the GPU and sends from the host, over shared memory, "
        "RDMA or TCP; it suits plain Ethernet, and jobs that mix GPU and CPU "
        "ranks. auto uses nccl if all ranks can."),
    Row<c::Choice<&O::device_sums, kSumsNames>>(
        kDevice, "device_sums", "float32 or nccl",
        "How 16-bit gradients of more than two ranks are added up when NCCL "
        "carries them. float32 rounds once, for as many bytes as a ring, but "
        "with more of them between hosts of several GPUs. nccl rounds every "
        "partial sum to 16 bits, as NCCL's own sums do."),
    Row<c::Boolean<&O::nccl_windows>>(
        kDevice, "nccl_windows", kOnOff,
        "NCCL 2.27 and newer map the staging memory of GPUs to each other "
        "where "
        "their links allow it, for faster small collectives."),
    Row<c::Text<&O::nccl_library, AnyText>>(
        kDevice, "nccl_library", "a path, or nothing",
        "Path of NCCL's shared library. If empty, the loader searches for "
        "libnccl.so.2."),

    Row<c::GradientType<&O::pool_dtype>>(kGradients, "pool_dtype",
                                         kGradientTypes,
                                         "Type of the gradients in memory."),
    Row<c::GradientType<&O::wire_dtype>>(
        kGradients, "wire_dtype", kGradientTypes,
        "Type of the gradients on the wire; sums are accumulated in float32. "
        "A 16-bit type halves the bytes and rounds the gradients."),
    Row<c::MeanOrSum<&O::reduce>>(
        kGradients, "reduce", "mean or sum",
        "Whether the result is the mean or the sum over the ranks."),
    Row<c::Bytes<&O::bucket_bytes, 0, kInfiniteBytes>>(
        kGradients, "bucket_bytes", "a size, auto or inf",
        "A bucket is sent when it holds more than this many bytes in the "
        "wire type. Smaller buckets overlap more; larger ones need fewer "
        "messages. 0 sends each tensor by itself, inf sends one message "
        "after backward, and auto chooses from measurements."),
    Row<c::Boolean<&O::overlap>>(
        kGradients, "overlap", kOnOff,
        "Send while backward is still running. Off leaves all cores to "
        "backward."),
    Row<c::Boolean<&O::accumulate>>(
        kGradients, "accumulate", kOnOff,
        "Whether backward adds its gradients to what the pool holds, instead "
        "of writing over it. With sparse communication the pool itself then "
        "keeps back what is not sent, which saves as much memory again and "
        "most of the passes over it, but in a 16-bit pool rounds it. For "
        "programs that call zero_gradients after each step."),
    Row<c::IntegerOrAuto<&O::compute_threads, 1, 1024, 0>>(
        kGradients, "compute_threads", "an integer from 1 to 1024, or auto",
        "Threads that share the CPU's passes over gradients (residuals, norms, "
        "updates), the calling thread included. More of them use more of the "
        "memory's bandwidth, and take cores from backward. Results have the "
        "same bits with any number. auto is the host's cores divided by its "
        "ranks, at most 8."),
    Row<c::LossScale<&O::loss_scale>>(
        kGradients, "loss_scale", "a finite number, more than 0",
        "The factor by which the framework multiplied the loss. Aggregated "
        "gradients are divided by it; gradients in a 16-bit pool, when they "
        "are used."),
    Row<c::Named<&O::algorithm, IsAllreduce>>(
        kGradients, "algorithm", kAllreduceNames,
        "How allreduces run, those of gradients and others. auto chooses the "
        "fastest by measured latency and bandwidth."),

    Row<c::Share<&O::sparsity>>(
        kSparse, "sparsity", kShare,
        "Share of the chunks that each step keeps back. A higher share saves "
        "bytes and delays gradients; 0 sends everything."),
    Row<c::Integer<&O::chunk_elements, 1, kTiB>>(
        kSparse, "chunk_elements", "an integer from 1 to 1099511627776",
        "The unit of sparse selection. Smaller chunks select more precisely; "
        "larger ones cost less."),
    Row<c::Integer<&O::warmup_steps, 0, kBillion>>(
        kSparse, "warmup_steps", "an integer from 0 to 1000000000",
        "The sparsity rises linearly over this many steps. A longer warm-up "
        "is safer for accuracy and saves less."),
    Row<c::Choice<&O::residual, kResidualNames>>(
        kSparse, "residual", "momentum or plain",
        "How gradients that are kept back accumulate: momentum decays them, "
        "for the chunk-aware optimisers; plain does not, for any other "
        "optimiser."),
    Row<c::Share<&O::momentum>>(
        kSparse, "momentum", kShare,
        "Decay of gradients that are kept back if residual is momentum. Must "
        "equal the optimiser's momentum."),
    Row<c::Boolean<&O::zero_kept>>(
        kSparse, "zero_kept", kOnOff,
        "Set gradients that are kept back to zero after the step also if "
        "residual is momentum, for code that reads them before the optimiser "
        "does, such as clipping by norm. Those of a step that is not finite "
        "become NaN."),

    Row<c::Duration<&O::timeout_seconds>>(
        kFailures, "timeout_seconds", kSeconds,
        "A peer that is alive but does not come to a collective for this "
        "long ends the job, whatever other groups of ranks do meanwhile. "
        "Must exceed the longest pause, such as a checkpoint."),
    Row<c::Duration<&O::heartbeat_timeout_seconds>>(
        kFailures, "heartbeat_timeout_seconds", kSeconds,
        "A peer whose process does not answer for this long ends the job. A "
        "short time-out finds failures early, but may take a pause for a "
        "failure."),
    Row<c::Duration<&O::stall_check_seconds>>(
        kFailures, "stall_check_seconds", kSeconds,
        "Log a warning after this long, with the ranks and tensors that are "
        "awaited."),
    Row<c::Duration<&O::join_timeout_seconds>>(
        kFailures, "join_timeout_seconds", kSeconds,
        "How long to wait for all ranks to meet. Use a longer time if a "
        "queue starts them at different times."),

    Row<c::Choice<&O::log_level, kLevelNames>>(
        kLogging, "log_level", "error, warning, info or debug",
        "The lowest level of messages that go to standard error."),
    Row<c::Text<&O::timeline, AnyText>>(
        kLogging, "timeline", "a file name, with %r for the rank, or nothing",
        "Write a trace for Perfetto or chrome://tracing to this file. If "
        "empty, no trace is written."),
    Row<c::Boolean<&O::trace_collectives>>(
        kLogging, "trace_collectives", kOnOff,
        "Log a line for each collective at level info, with what was chosen "
        "and why. For diagnosis only, since it costs time."),
    Row<c::Text<&O::profile, AnyText>>(
        kLogging, "profile", "a file name, or nothing",
        "Write what the model computes, for gradientflow_plan: when gradients "
        "are ready, and how long each part of a step takes. Rank 0 writes the "
        "file, or each rank if %r stands for the rank in its name: from "
        "time to time while the session is open, and as it closes. Each "
        "session of a process needs a name of its own, and so does "
        "each DDP with a hook of gradientflow.torch. If empty, none is "
        "written."),
    Row<c::Integer<&O::profile_batch, 0, kBillion>>(
        kLogging, "profile_batch", "an integer from 0 to 1000000000",
        "How many samples a rank takes in a step, for the profile. 0 says "
        "that it is not known."),
};

// The settings of transports end the section of the fabric.
void AppendOfTransports(std::vector<Setting>* rows) {
  for (const TransportKind* kind : Transports()) {
    if (kind->settings == nullptr) continue;
    for (const TransportSetting& own : kind->settings()) {
      rows->push_back({own.name, kFabric, own.expected, own.meaning, false,
                       nullptr, nullptr, &own});
    }
  }
}

const std::vector<Setting>& SettingsTable() {
  static const std::vector<Setting> table = [] {
    std::vector<Setting> rows;
    for (Setting row : kRows) {
      if (row.expected == kAllreduceNames) row.expected = AllreduceNames();
      if (row.expected == kTransportNames) row.expected = TransportNames();
      if (row.expected == kGradientTypes) row.expected = GradientTypeNames();
      if (row.section != kFabric && !rows.empty() &&
          rows.back().section == kFabric) {
        AppendOfTransports(&rows);
      }
      rows.push_back(row);
    }
    return rows;
  }();
  return table;
}

std::string_view WithoutPrefix(std::string_view upper) {
  if (upper.substr(0, kVariablePrefix.size()) == kVariablePrefix) {
    upper.remove_prefix(kVariablePrefix.size());
  }
  return upper;
}

}  // namespace

bool Setting::Parse(std::string_view text, Options* options) const {
  if (of_transport == nullptr) return parse(text, options);
  if (!of_transport->is_valid(text)) return false;
  if (text == of_transport->usual) {
    options->transport_settings.erase(std::string(name));
  } else {
    options->transport_settings[std::string(name)] = text;
  }
  return true;
}

std::string Setting::Print(const Options& options) const {
  if (of_transport == nullptr) return print(options);
  const auto found = options.transport_settings.find(name);
  return found == options.transport_settings.end()
             ? std::string(of_transport->usual)
             : found->second;
}

std::string Setting::variable() const {
  return std::string(kVariablePrefix) + Upper(name);
}

std::string Setting::PrintForLog(const Options& options) const {
  std::string text = Print(options);
  return secret && text != Print(Options()) ? "***" : text;
}

std::span<const Setting> Settings() { return SettingsTable(); }

const Setting* FindSetting(std::string_view name) {
  const std::string upper = Upper(name);
  const std::string field = Lower(WithoutPrefix(upper));
  const auto found =
      std::find_if(Settings().begin(), Settings().end(),
                   [&](const Setting& s) { return s.name == field; });
  return found == Settings().end() ? nullptr : &*found;
}

const Setting& NearestSetting(std::string_view name) {
  const std::string upper = Upper(name);
  const std::string field = Lower(WithoutPrefix(upper));
  return *std::min_element(Settings().begin(), Settings().end(),
                           [&](const Setting& a, const Setting& b) {
                             return EditDistance(field, a.name) <
                                    EditDistance(field, b.name);
                           });
}

std::string BadValueText(std::string_view label, const Setting& setting,
                         std::string_view text) {
  const std::string seen = setting.secret ? "***" : std::string(text);
  return StrCat(label, ": expected ", setting.expected, ", got '", seen, "'");
}

std::string UnknownNameText(std::string_view name) {
  const Setting& nearest = NearestSetting(name);
  const bool prefixed =
      Upper(name).substr(0, kVariablePrefix.size()) == kVariablePrefix;
  return StrCat("'", name, "' is no setting; did you mean ",
                prefixed ? nearest.variable() : std::string(nearest.name), "?");
}

Status SetOption(Options* options, std::string_view name,
                 std::string_view text) {
  const Setting* setting = FindSetting(name);
  if (setting == nullptr) {
    return Status(StatusCode::kInvalidArgument, UnknownNameText(name));
  }
  if (!setting->Parse(text, options)) {
    return Status(StatusCode::kInvalidArgument,
                  BadValueText(setting->name, *setting, text));
  }
  return Status();
}

Result<std::string> GetOption(const Options& options, std::string_view name) {
  const Setting* setting = FindSetting(name);
  if (setting == nullptr) {
    return Status(StatusCode::kInvalidArgument, UnknownNameText(name));
  }
  return setting->Print(options);
}

}  // namespace gradientflow
