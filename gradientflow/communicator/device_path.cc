#include "gradientflow/communicator/device_path.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "gradientflow/base/looks.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/attach.h"
#include "gradientflow/config/text_values.h"
#include "gradientflow/device/cuda_device.h"

namespace gradientflow {
namespace {

constexpr std::string_view kCuda = "cuda";
// See patience_seconds_.
constexpr double kLeastPatienceSeconds = 1;
constexpr double kMostPatienceSeconds = 5;
// Registered with NCCL at the start. A larger bucket makes it grow.
constexpr std::size_t kUsualStaging = std::size_t{32} << 20;

// Returns whether all ranks say yes.
Result<bool> AgreeAtOpening(const OpeningArgs& opening, bool mine) {
  std::int32_t all = mine ? 1 : 0;
  CollectiveCall call;
  call.output = &all;
  call.count = 1;
  call.dtype = call.wire = DType::kInt32;
  call.op = ReduceOp::kMin;
  GF_RETURN_IF_ERROR(RunAtOpening(opening, call));
  return all != 0;
}

// Gives the bytes of rank 0 to all ranks.
Status BroadcastAtOpening(const OpeningArgs& opening, void* data,
                          std::size_t bytes) {
  CollectiveCall call;
  call.kind = CollectiveKind::kBroadcast;
  call.output = data;
  call.count = bytes;
  call.dtype = call.wire = DType::kInt8;
  return RunAtOpening(opening, call);
}

}  // namespace

Result<std::shared_ptr<Device>> OpenDevice(const Options& options,
                                           int local_rank) {
  int index = 0;
  if (options.device == kCuda) {
    index = local_rank % std::max(1, CudaDeviceCount());
  } else {
    index = static_cast<int>(
        ParseUnsigned(std::string_view(options.device).substr(kCuda.size() + 1))
            .value_or(0));
  }
  Result<std::unique_ptr<Device>> device = OpenCudaDevice(index);
  if (!device.ok()) return device.status();
  return std::shared_ptr<Device>(std::move(device).value());
}

RankFacts DevicePath::FactsOf(const Options& options, const Device& device,
                              Logger& logger,
                              std::shared_ptr<const NcclApi>* nccl) {
  RankFacts facts;
  facts.on_device = 1;
  facts.device_id = static_cast<std::int64_t>(device.unique_id());
  if (options.device_collectives == DeviceCollectives::kStaged) return facts;
  Result<std::shared_ptr<const NcclApi>> api = LoadNccl(options.nccl_library);
  if (api.ok()) {
    *nccl = std::move(api).value();
    facts.nccl_version = (*nccl)->version;
  } else {
    logger.Log(options.device_collectives == DeviceCollectives::kNccl
                   ? LogLevel::kError
                   : LogLevel::kInfo,
               api.status().message());
  }
  return facts;
}

Result<std::unique_ptr<DevicePath>> DevicePath::Create(
    const DevicePathArgs& args, std::shared_ptr<Device> device,
    std::shared_ptr<const NcclApi> nccl, const std::vector<RankFacts>& ranks) {
  std::unique_ptr<DevicePath> made(new DevicePath(std::move(device)));
  made->opening_ = args.opening;
  made->logger_ = args.logger;
  if (args.group->all_place) made->places_ = args.places;
  made->patience_seconds_ =
      std::clamp(args.options->timeout_seconds, kLeastPatienceSeconds,
                 kMostPatienceSeconds);
  std::string why;
  const DeviceCollectives wanted = args.options->device_collectives;
  const bool can = AllCanNccl(ranks, &why);
  if (wanted == DeviceCollectives::kNccl && !can) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("device_collectives: nccl was asked for, but ", why));
  }
  // A single rank exchanges with no one.
  const bool use = can && wanted != DeviceCollectives::kStaged &&
                   (wanted == DeviceCollectives::kNccl || ranks.size() > 1);
  GF_RETURN_IF_ERROR(use ? made->MakeNccl(args, std::move(nccl))
                         : made->MakeStaged(args));
  args.logger->Log(
      LogLevel::kInfo,
      StrCat("gradients on ", made->device_->description(),
             use ? ", by NCCL" : ", staged through the host",
             use || ranks.size() == 1 || why.empty() ? ""
                                                     : StrCat(" (", why, ")")));
  Result<std::unique_ptr<DeviceSync>> sync =
      DeviceSync::Create(*made->device_, /*section_ends=*/{});
  if (!sync.ok()) return sync.status();
  made->sync_ = std::move(sync).value();
  return made;
}

Status DevicePath::MakeNccl(const DevicePathArgs& args,
                            std::shared_ptr<const NcclApi> nccl) {
  const OpeningArgs opening = args.opening;
  NcclArgs nccl_args;
  nccl_args.api = std::move(nccl);
  nccl_args.rank = args.group->rank;
  nccl_args.size = args.group->size;
  nccl_args.device = device_.get();
  nccl_args.clock = opening.clock;
  nccl_args.recorder = args.recorder;
  nccl_args.logger = args.logger;
  nccl_args.trace = args.options->trace_collectives;
  nccl_args.broadcast = [opening](void* data, std::size_t bytes) {
    return BroadcastAtOpening(opening, data, bytes);
  };
  nccl_args.all_agree = [opening](bool mine) {
    return AgreeAtOpening(opening, mine);
  };
  Fabric* fabric = opening.fabric;
  nccl_args.culprits = [fabric] { return fabric->status().message(); };
  // Heartbeats go on while NCCL connects, so a rank that dies meanwhile is
  // found.
  nccl_args.while_waiting = [opening] {
    opening.Poll();
    opening.fabric->Tick(true);
    opening.fabric->Wait(std::chrono::milliseconds(1));
    return opening.fabric->status();
  };
  // A rank that closes in the middle of a call never ends it.
  nccl_args.on_standing = [fabric] {
    for (int r = 0; fabric->departed() > 0 && r < fabric->size(); ++r) {
      fabric->FailIfDeparted(r);
    }
  };
  nccl_args.init_seconds = args.options->join_timeout_seconds;
  nccl_args.timeout_seconds = args.options->timeout_seconds;
  if (nccl_args.timeout_seconds > 0) {
    nccl_args.turn_seconds =
        std::min(nccl_args.turn_seconds, nccl_args.timeout_seconds / 4);
    nccl_args.culprit_seconds =
        std::min(nccl_args.culprit_seconds, nccl_args.timeout_seconds / 10);
  }
  nccl_args.abort_seconds = patience_seconds_;
  nccl_args.sums = args.options->device_sums == DeviceSums::kFloat32
                       ? NcclSums::kFloat32
                       : NcclSums::kNccl;
  nccl_args.windows = args.options->nccl_windows;
  // A window is made by all ranks or by none, and their types may differ.
  if (nccl_args.windows ||
      args.options->wire_dtype != args.options->pool_dtype ||
      args.options->wire_dtype != DType::kFloat32) {
    nccl_args.staging_bytes = kUsualStaging;
  }
  Result<std::unique_ptr<NcclCollective>> made =
      NcclCollective::Create(std::move(nccl_args));
  if (!made.ok()) return made.status();
  nccl_ = std::move(made).value();
  return Status();
}

Status DevicePath::MakeStaged(const DevicePathArgs& args) {
  StagedArgs staged;
  staged.inner = args.opening.executor;
  staged.device = device_.get();
  staged.arena = args.arena;
  staged.places = args.places;
  staged.logger = args.logger;
  staged.fabric = args.opening.fabric;
  staged.clock = args.opening.clock;
  staged.group = *args.group;
  StagedOptions options;
  options.abandon_seconds = patience_seconds_;
  Result<std::unique_ptr<StagedCollective>> made =
      StagedCollective::Create(staged, options);
  if (!made.ok()) return made.status();
  staged_ = std::move(made).value();
  return Status();
}

DevicePath::~DevicePath() = default;

Result<DeviceMemory> DevicePath::Allocate(std::size_t bytes) {
  return nccl_ != nullptr ? nccl_->Allocate(bytes) : device_->Allocate(bytes);
}

void DevicePath::Register(void* data, std::size_t bytes) {
  if (nccl_ != nullptr) {
    const Status registered = nccl_->Register(data, bytes);
    if (registered.ok()) return;
    logger_->Log(
        LogLevel::kWarning,
        StrCat("memory for NCCL is not registered: ", registered.message()));
    return;
  }
  if (places_ == nullptr || bytes == 0) return;
  const Result<std::string> way =
      AttachDeviceMemory(*device_, *places_,
                         {static_cast<std::byte*>(data), bytes, device_->id()});
  if (way.ok()) {
    attached_.insert(data);
    logger_->Log(LogLevel::kInfo,
                 StrCat("RDMA reaches ", bytes, " bytes of gradients on ",
                        device_->description(), " by ", way.value()));
  } else if (refused_ != way.status().message()) {
    refused_ = way.status().message();
    logger_->Log(LogLevel::kWarning,
                 StrCat("RDMA does not reach gradients on ",
                        device_->description(), " where they are: ", refused_));
  }
}

void DevicePath::Deregister(void* data) {
  if (nccl_ != nullptr) nccl_->Deregister(data);
  if (attached_.erase(data) == 1) {
    places_->Detach(static_cast<std::byte*>(data));
  }
}

// Returns whether some of the call's elements are in the device's memory; an
// error if some are in another's.
Result<bool> DevicePath::Reaches(const CollectiveCall& call,
                                 const CallGroup& group) const {
  const CallBuffers buffers = BuffersOf(call, group);
  const std::tuple<const char*, const void*, std::size_t> parts[] = {
      {"input", call.input, buffers.input},
      {"output", call.output, buffers.output}};
  bool reaches = false;
  for (const auto& [name, data, count] : parts) {
    if (count == 0) continue;
    const MemoryOwner owner = device_->OwnerOf(data);
    reaches |= owner == MemoryOwner::kThisDevice;
    if (owner != MemoryOwner::kOtherDevice) continue;
    // The executor would read it as the host's, and end the process.
    return Status(StatusCode::kInvalidArgument,
                  StrCat(Name(call.kind), ": ", name, " is at ", data,
                         ", on another device than the communicator's, ",
                         device_->description()));
  }
  return reaches;
}

// Decides whether a call without elements on this rank goes to NCCL or to the
// executor. All ranks must decide alike, including those that have no elements
// in the call. Such a rank may pass no pointer either; that counts as the
// device's memory.
bool DevicePath::GoesToDeviceEmpty(const CollectiveCall& call,
                                   const CallGroup& group) const {
  if (call.kind == CollectiveKind::kBarrier) return false;
  const CallBuffers buffers = BuffersOf(call, group);
  if (buffers.input + buffers.output > 0) return false;
  if (UsesCount(call) && call.count == 0) return true;  // Ends at once.
  const void* pointer = call.output != nullptr ? call.output : call.input;
  return pointer == nullptr || device_->Owns(pointer);
}

Status DevicePath::Start(const CollectiveCall& call, Done done) {
  Executor& executor = *opening_.executor;
  const CallGroup& group = *executor.FindGroup(call.group);
  const Result<bool> found = Reaches(call, group);
  if (!found.ok()) return found.status();
  const bool reaches = found.value();
  if (call.group != 0) {
    if (reaches) {
      return Status(StatusCode::kUnimplemented,
                    StrCat(Name(call.kind), " in group ", call.group,
                           " on a device's memory: only the group of all "
                           "ranks takes that; copy it to the host"));
    }
    executor.Start(call, done);
    return Status();
  }
  if (reaches) {
    const Status fenced = sync_->Fence(stream(call.channel));
    if (!fenced.ok()) {
      // The other ranks wait for this call.
      opening_.fabric->Fail(fenced);
      return fenced;
    }
  }
  // Staged calls take their turns among the calls on host memory.
  if (!by_nccl() || reaches || GoesToDeviceEmpty(call, group)) {
    collective().Start(call, done);
  } else {
    executor.Start(call, done);
  }
  return Status();
}

bool DevicePath::Poll() {
  const bool moved = collective().Poll();
  if (moved) ++moves_;
  Fabric& fabric = *opening_.fabric;
  const Status failure = collective().failure();
  if (!failure.ok()) fabric.Fail(failure);
  // NCCL's calls in flight may never end once the job has failed.
  if (!fabric.status().ok() && !std::exchange(heard_, true) &&
      nccl_ != nullptr) {
    nccl_->Fail(fabric.status());
  }
  return moved;
}

std::chrono::nanoseconds DevicePath::Nap(std::chrono::nanoseconds idle) const {
  constexpr std::chrono::microseconds kShortest(10);
  return IntervalAfter(idle, kShortest);
}

bool DevicePath::Close() {
  // Work on any of these streams may still touch what is freed next.
  WorkEnd end(*device_);
  end.Add(sync_->producer());
  AddWork(Channel::kPlain, &end);
  AddWork(Channel::kGradients, &end);
  if (EndCalls() && Await(&end)) return true;
  LogKept("the communicator's memory", end);
  return false;
}

// Returns whether the device has done all work of the calls.
bool DevicePath::EndCalls() {
  if (nccl_ != nullptr) return nccl_->Close();
  while (staged_->in_flight() > 0) {
    const bool moved = staged_->Poll();
    if (opening_.Poll() || moved) continue;
    opening_.fabric->Wait(std::chrono::milliseconds(1));
  }
  return !staged_->left_behind();
}

void DevicePath::AddWork(Channel channel, WorkEnd* end) {
  if (nccl_ != nullptr) {
    nccl_->AddWork(channel, end);
  } else {
    staged_->AddWork(end);
  }
}

bool DevicePath::GivesUp(const WorkEnd& end,
                         std::optional<Clock::Time>* since) const {
  if (opening_.fabric->status().ok() && end.doubt().ok()) {
    since->reset();
    return false;
  }
  const Clock::Time now = opening_.clock->Now();
  if (!*since) *since = now;
  return Seconds(now - **since) > patience_seconds_;
}

void DevicePath::LogKept(const std::string& what, const WorkEnd& end) const {
  const std::string& why = end.doubt().message();
  logger_->Log(LogLevel::kError,
               StrCat(device_->description(), " does not come to its end: ",
                      what, " is left behind", why.empty() ? "" : ": ", why));
}

// Keeps up the heartbeats of this rank meanwhile. Returns whether the work has
// ended.
bool DevicePath::Await(WorkEnd* end) {
  std::optional<Clock::Time> since;
  while (!end->Reached()) {
    opening_.Poll();
    opening_.fabric->Tick(false);
    if (GivesUp(*end, &since)) return false;
    opening_.fabric->Wait(std::chrono::milliseconds(1));
  }
  return true;
}

Collective& DevicePath::collective() {
  if (nccl_ != nullptr) return *nccl_;
  return *staged_;
}

Stream& DevicePath::stream(Channel channel) {
  return nccl_ != nullptr ? nccl_->stream(channel) : staged_->stream();
}

Stream& DevicePath::wire(Channel channel) {
  return nccl_ != nullptr ? nccl_->wire(channel) : staged_->stream();
}
}  // namespace gradientflow
