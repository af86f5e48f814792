#include "gradientflow/config/settings_table.h"

#include <algorithm>
#include <array>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/choose.h"
#include "gradientflow/config/setting_codecs.h"
#include "gradientflow/config/text_values.h"
#include "transports/registry/registry.h"

// One row per setting. A row names a codec (setting_codecs.h), which knows the
// field of Options and its range, and holds the section, the name and the texts
// for people. To add a setting, add a field to Options and a row here.
namespace gradientflow {
namespace {

using Names = std::string_view;
constexpr std::array<Names, 3> kFamilyNames = {"any", "ipv4", "ipv6"};
constexpr std::array<Names, 4> kLevelNames = {"error", "warning", "info",
                                              "debug"};
constexpr std::array<Names, 3> kCollectivesNames = {"auto", "nccl", "staged"};
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
bool SomeText(std::string_view text) { return !text.empty(); }
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
constexpr std::string_view kFailure = "Failure";
constexpr std::string_view kSight = "Sight";
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
        "This process, counted from 0. auto: from torchrun, Open MPI or "
        "Slurm; 0 without a launcher."),
    Row<c::IntegerOrAuto<&O::size, 1, kMaxRanks, -1>>(
        kJob, "size", "an integer from 1 to 1048576, or auto",
        "Ranks in the job. auto: from torchrun, Open MPI or Slurm; 1 without "
        "a launcher."),
    Row<c::Text<&O::rendezvous, RendezvousOrEmpty>>(
        kJob, "rendezvous",
        "host:port, [ipv6]:port, file:///directory, or nothing",
        "Where ranks meet: an address at which rank 0 listens, or a directory "
        "that all share. Nothing: from the launcher."),
    Secret(Row<c::Text<&O::job_token, SomeText>>(
        kJob, "job_token", "some text",
        "Ranks of other jobs, with another token, cannot join by mistake; who "
        "means harm can: it travels in clear, and traffic is not signed. Use a "
        "private network. torchrun, Open MPI and Slurm give one.")),
    Row<c::Text<&O::host_id, AnyText>>(
        kJob, "host_id", "any text",
        "Ranks with equal ids share memory. Nothing: found out. Set it apart "
        "to keep containers of one host from sharing."),

    Row<c::Named<&O::fabric, IsTransport>>(
        kFabric, "fabric", kTransportNames,
        "auto: shared memory inside a host, TCP between hosts. shm needs all "
        "ranks on one host; tcp is slower there, but needs no shared memory."),
    Row<c::Text<&O::socket_ifname, AnyText>>(
        kFabric, "socket_ifname", "interface prefixes: eth0,ib or ^docker,lo",
        "Interfaces for TCP; a leading ^ excludes. Nothing: all that are up, "
        "loopback only when nothing else is."),
    Row<c::Choice<&O::socket_family, kFamilyNames>>(
        kFabric, "socket_family", "any, ipv4 or ipv6",
        "Addresses that TCP may use."),
    Row<c::IntegerOrAuto<&O::connections, 1, 63, 0>>(
        kFabric, "connections", "an integer from 1 to 63, or auto",
        "TCP connections per peer. More fill a fast link better and cost file "
        "descriptors. auto: by number of ranks."),
    Row<c::BytesOrKernel<&O::socket_buffer_bytes, kGiB>>(
        kFabric, "socket_buffer_bytes", "a size up to 1GB, or auto",
        "Send and receive buffer of each connection. Larger fills links with "
        "a long delay, at that much memory each. auto: the kernel's tuning."),
    Row<c::Bytes<&O::segment_bytes, 4096, kGiB, 64>>(
        kFabric, "segment_bytes", "a multiple of 64 from 4KB to 1GB",
        "Unit of pipelining inside a collective. Smaller overlaps better, "
        "larger has less overhead."),
    Row<c::Integer<&O::segments_in_flight, 1, 64>>(
        kFabric, "segments_in_flight", "an integer from 1 to 64",
        "Segments on their way at a time. More hide delay, and each takes "
        "memory beyond the pool."),
    Row<c::Bytes<&O::arena_bytes, kGiB / 1024, 64 * kTiB>>(
        kFabric, "arena_bytes", "a size from 1MB to 64TB",
        "Address space that each rank reserves for memory shared with its "
        "host; memory is used only as needed. Must hold the pool."),
    Row<c::Bytes<&O::fifo_bytes, 4096, kGiB>>(
        kFabric, "fifo_bytes", "a size from 4KB to 1GB",
        "Shared-memory queue per pair of ranks and direction. Larger lets "
        "senders run ahead."),
    Row<c::IntegerOrAuto<&O::spin_microseconds, 0, 1000000, -1>>(
        kFabric, "spin_microseconds", "an integer from 0 to 1000000, or auto",
        "Busy-wait before blocking: less latency, more CPU. auto: 50 if there "
        "is a core per rank of the host, else 0."),

    Row<c::Text<&O::device, IsDevice>>(
        kDevice, "device", "cpu, cuda or cuda:N",
        "Where the gradient pool lives. cuda: this host's ranks take its GPUs "
        "in turn. Ranks may differ."),
    Row<c::Choice<&O::device_collectives, kCollectivesNames>>(
        kDevice, "device_collectives", "auto, nccl or staged",
        "How GPUs exchange. nccl needs one GPU per rank; staged compresses on "
        "the GPU and goes by shared memory and TCP, for plain Ethernet and "
        "mixed ranks. auto: nccl where all ranks can."),
    Row<c::Text<&O::nccl_library, AnyText>>(
        kDevice, "nccl_library", "a path, or nothing",
        "NCCL's shared library. Nothing: libnccl.so.2, as the loader finds "
        "it."),

    Row<c::GradientType<&O::pool_dtype>>(kGradients, "pool_dtype",
                                         kGradientTypes,
                                         "Type of the gradients in memory."),
    Row<c::GradientType<&O::wire_dtype>>(
        kGradients, "wire_dtype", kGradientTypes,
        "Type of the gradients between ranks; sums are float32. 16 bits halve "
        "the bytes and round the gradients."),
    Row<c::MeanOrSum<&O::reduce>>(kGradients, "reduce", "mean or sum",
                                  "What the ranks' gradients become."),
    Row<c::Bytes<&O::bucket_bytes, 0, kInfiniteBytes>>(
        kGradients, "bucket_bytes", "a size, auto or inf",
        "A bucket leaves once it holds more than this, in wire bytes. Small "
        "overlaps more, large costs fewer messages. 0: each tensor by itself; "
        "inf: one message after backward; auto: from measurements."),
    Row<c::Boolean<&O::overlap>>(
        kGradients, "overlap", kOnOff,
        "Send while backward still runs. Off leaves all cores to backward."),
    Row<c::PositiveFloat<&O::loss_scale>>(
        kGradients, "loss_scale", "a finite number, more than 0",
        "The factor that the framework multiplied the loss by. Divides the "
        "aggregated gradients; those in a 16-bit pool when they are used."),
    Row<c::Named<&O::algorithm, IsAllreduce>>(
        kGradients, "algorithm", kAllreduceNames,
        "How allreduces run, gradients' and others'. auto: the fastest by "
        "measured latency and bandwidth."),

    Row<c::Share<&O::sparsity>>(
        kSparse, "sparsity", kShare,
        "Share of chunks kept back each step. More saves bytes and delays "
        "gradients; 0: dense."),
    Row<c::Integer<&O::chunk_elements, 1, kTiB>>(
        kSparse, "chunk_elements", "an integer from 1 to 1099511627776",
        "Unit of sparse selection. Smaller selects more precisely, larger "
        "costs less."),
    Row<c::Integer<&O::warmup_steps, 0, kBillion>>(
        kSparse, "warmup_steps", "an integer from 0 to 1000000000",
        "Sparsity rises linearly over these steps: longer is safer for "
        "accuracy and saves less."),
    Row<c::Choice<&O::residual, kResidualNames>>(
        kSparse, "residual", "momentum or plain",
        "What is kept back: decayed by momentum, for the chunk-aware "
        "optimisers; or plain, for any other optimiser."),
    Row<c::Share<&O::momentum>>(
        kSparse, "momentum", kShare,
        "Decay of what is kept back when residual is momentum; the "
        "optimiser's own."),
    Row<c::Boolean<&O::zero_kept>>(
        kSparse, "zero_kept", kOnOff,
        "With residual momentum, too, gradients that are kept back read as "
        "zero after the step, for code that looks at them before the optimiser "
        "does: clipping by their norm, say."),

    Row<c::Duration<&O::timeout_seconds>>(
        kFailure, "timeout_seconds", kSeconds,
        "A peer that lives but does not come to a collective for this long "
        "ends the job, whatever other groups of ranks do meanwhile. Longer "
        "than the slowest pause, such as a checkpoint."),
    Row<c::Duration<&O::heartbeat_timeout_seconds>>(
        kFailure, "heartbeat_timeout_seconds", kSeconds,
        "A peer whose process does not answer for this long ends the job. "
        "Short finds failures early, and takes a pause for one."),
    Row<c::Duration<&O::stall_check_seconds>>(
        kFailure, "stall_check_seconds", kSeconds,
        "Warn after this long, naming the ranks and tensors awaited."),
    Row<c::Duration<&O::join_timeout_seconds>>(
        kFailure, "join_timeout_seconds", kSeconds,
        "For all ranks to meet. Longer where a queue starts them apart."),

    Row<c::Choice<&O::log_level, kLevelNames>>(
        kSight, "log_level", "error, warning, info or debug",
        "Least weight of the lines on standard error."),
    Row<c::Text<&O::timeline, AnyText>>(
        kSight, "timeline", "a file name, with %r for the rank, or nothing",
        "Write a trace for Perfetto or chrome://tracing there. Nothing: "
        "none."),
    Row<c::Boolean<&O::trace_collectives>>(
        kSight, "trace_collectives", kOnOff,
        "Log a line for each collective, with what was chosen and why, at "
        "level info. For diagnosis: it costs time."),
};

using Table = std::array<Setting, kRows.size()>;

const Table& SettingsTable() {
  static const Table table = [] {
    Table rows = kRows;
    for (Setting& row : rows) {
      if (row.expected == kAllreduceNames) row.expected = AllreduceNames();
      if (row.expected == kTransportNames) row.expected = TransportNames();
      if (row.expected == kGradientTypes) row.expected = GradientTypeNames();
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

std::string Setting::variable() const {
  return std::string(kVariablePrefix) + Upper(name);
}

std::string Setting::PrintForLog(const Options& options) const {
  std::string text = print(options);
  return secret && text != print(Options()) ? "***" : text;
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
  if (!setting->parse(text, options)) {
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
  return setting->print(options);
}

}  // namespace gradientflow
