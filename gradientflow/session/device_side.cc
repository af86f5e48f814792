#include "gradientflow/session/device_side.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/text_values.h"
#include "gradientflow/device/cuda_device.h"
#include "gradientflow/session/engine.h"

namespace gradientflow {
namespace {

constexpr std::string_view kCuda = "cuda";
// For a device to get to its end after the job has failed.
constexpr double kIdleSeconds = 5;
// Registered with NCCL from the beginning; a larger bucket has it grow.
constexpr std::size_t kUsualStaging = std::size_t{32} << 20;

// The bytes of rank 0, on all ranks.
Status BroadcastAtOpening(const OpeningParts& opening, void* data,
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
                                           const CallGroup& group) {
  int index = 0;
  if (options.device == kCuda) {
    const std::vector<int>& hosts = group.topology.host;
    int before = 0;
    for (int r = 0; r < group.rank; ++r) {
      before += hosts[static_cast<std::size_t>(r)] ==
                hosts[static_cast<std::size_t>(group.rank)];
    }
    index = before % std::max(1, CudaDeviceCount());
  } else {
    index = static_cast<int>(
        ParseUnsigned(std::string_view(options.device).substr(kCuda.size() + 1))
            .value_or(0));
  }
  Result<std::unique_ptr<Device>> device = OpenCudaDevice(index);
  if (!device.ok()) return device.status();
  return std::shared_ptr<Device>(std::move(device).value());
}

Place DeviceSide::PlaceOf(const Options& options, const Device& device,
                          Logger& logger,
                          std::shared_ptr<const NcclApi>* nccl) {
  Place place;
  place.on_device = 1;
  place.device_id = static_cast<std::int64_t>(device.unique_id());
  if (options.device_collectives == DeviceCollectives::kStaged) return place;
  Result<std::shared_ptr<const NcclApi>> api = LoadNccl(options.nccl_library);
  if (api.ok()) {
    *nccl = std::move(api).value();
    place.nccl_version = (*nccl)->version;
  } else {
    logger.Log(options.device_collectives == DeviceCollectives::kNccl
                   ? LogLevel::kError
                   : LogLevel::kInfo,
               api.status().message());
  }
  return place;
}

Result<std::unique_ptr<DeviceSide>> DeviceSide::Create(
    const DeviceSideParts& parts, std::shared_ptr<Device> device,
    std::shared_ptr<const NcclApi> nccl, const std::vector<Place>& places) {
  std::unique_ptr<DeviceSide> side(new DeviceSide(std::move(device)));
  side->opening_ = parts.opening;
  side->pool_bytes_ =
      parts.layout->elements() * SizeOf(parts.options->pool_dtype);
  Result<DeviceMemory> pool = side->device_->Allocate(side->pool_bytes_);
  if (!pool.ok()) return pool.status();
  side->pool_ = std::move(pool).value();

  std::string why;
  const DeviceCollectives wanted = parts.options->device_collectives;
  const bool can = AllCanNccl(places, &why);
  if (wanted == DeviceCollectives::kNccl && !can) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("device_collectives: nccl was asked for, but ", why));
  }
  // One rank exchanges with nobody.
  const bool use = can && wanted != DeviceCollectives::kStaged &&
                   (wanted == DeviceCollectives::kNccl || places.size() > 1);
  GF_RETURN_IF_ERROR(use ? side->MakeNccl(parts, std::move(nccl))
                         : side->MakeStaged(parts));
  parts.logger->Log(LogLevel::kInfo,
                    StrCat("gradients on ", side->device_->description(),
                           use ? ", by NCCL" : ", staged through the host",
                           use || places.size() == 1 || why.empty()
                               ? ""
                               : StrCat(" (", why, ")")));
  Result<std::unique_ptr<DeviceSync>> sync =
      DeviceSync::Create(*side->device_, side->stream(Channel::kGradients),
                         Engine::GroupsOf(*parts.layout));
  if (!sync.ok()) return sync.status();
  side->sync_ = std::move(sync).value();

  DeviceOptimizerParts optimizer;
  optimizer.layout = parts.layout;
  optimizer.device = side->device_.get();
  optimizer.pool = side->pool_.get();
  optimizer.type = parts.options->pool_dtype;
  optimizer.chunk_elements =
      parts.options->sparsity > 0 ? parts.options->chunk_elements : 0;
  optimizer.skip_lars = parts.skip_lars;
  Result<std::unique_ptr<DeviceOptimizer>> made =
      DeviceOptimizer::Create(std::move(optimizer));
  if (!made.ok()) return made.status();
  side->optimizer_ = std::move(made).value();
  return side;
}

Status DeviceSide::MakeNccl(const DeviceSideParts& parts,
                            std::shared_ptr<const NcclApi> nccl) {
  const OpeningParts opening = parts.opening;
  NcclArgs args;
  args.api = std::move(nccl);
  args.rank = parts.group->rank;
  args.size = parts.group->size;
  args.device = device_.get();
  args.clock = opening.clock;
  args.recorder = parts.recorder;
  args.logger = parts.logger;
  args.trace = parts.options->trace_collectives;
  args.broadcast = [opening](void* data, std::size_t bytes) {
    return BroadcastAtOpening(opening, data, bytes);
  };
  Fabric* fabric = opening.fabric;
  args.culprits = [fabric] { return fabric->status().message(); };
  // Heartbeats go on, and a rank that dies meanwhile is seen.
  args.while_waiting = [opening] {
    opening.executor->Poll();
    opening.fabric->Tick(true);
    opening.fabric->Wait(std::chrono::milliseconds(1));
    return opening.fabric->status();
  };
  // A rank that closes in the midst of a call never ends it.
  args.on_standing = [fabric] {
    for (int r = 0; fabric->departed() > 0 && r < fabric->size(); ++r) {
      fabric->FailIfDeparted(r);
    }
  };
  args.init_seconds = parts.options->join_timeout_seconds;
  args.timeout_seconds = parts.options->timeout_seconds;
  if (parts.options->wire_dtype != parts.options->pool_dtype) {
    const std::size_t wire =
        parts.layout->elements() * SizeOf(parts.options->wire_dtype);
    args.staging_bytes = std::min(wire, kUsualStaging);
  }
  Result<std::unique_ptr<NcclCollective>> made =
      NcclCollective::Create(std::move(args));
  if (!made.ok()) return made.status();
  nccl_ = std::move(made).value();
  const Status registered = nccl_->Register(pool_.get(), pool_bytes_);
  if (!registered.ok()) {
    parts.logger->Log(LogLevel::kWarning, StrCat("the pool is not registered: ",
                                                 registered.message()));
  }
  return Status();
}

Status DeviceSide::MakeStaged(const DeviceSideParts& parts) {
  StagedParts staged;
  staged.inner = parts.opening.executor;
  staged.device = device_.get();
  staged.arena = parts.arena;
  staged.fabric = parts.opening.fabric;
  staged.clock = parts.opening.clock;
  staged.group = *parts.group;
  Result<std::unique_ptr<StagedCollective>> made =
      StagedCollective::Create(staged, StagedOptions());
  if (!made.ok()) return made.status();
  staged_ = std::move(made).value();
  return Status();
}

DeviceSide::~DeviceSide() = default;

bool DeviceSide::Close() {
  if (staged_ != nullptr) {
    while (staged_->in_flight() > 0) {
      const bool moved = staged_->Poll();
      if (opening_.executor->Poll() || moved) continue;
      opening_.fabric->Wait(std::chrono::milliseconds(1));
    }
    if (staged_->left_behind()) return false;
  }
  if (nccl_ != nullptr && !nccl_->Close()) return false;
  if (optimizer_ == nullptr) return true;
  // Work of any of them may still touch what is freed next.
  return AwaitEnd(sync_->producer()) && AwaitEnd(stream(Channel::kPlain)) &&
         AwaitEnd(stream(Channel::kGradients)) && Await(optimizer_->stepped());
}

bool DeviceSide::AwaitEnd(Stream& stream) {
  const Result<std::unique_ptr<Event>> end = device_->NewEvent();
  // A device that reports an error works no more.
  if (!end.ok() || !stream.Record(end.value().get()).ok()) return true;
  return Await(*end.value());
}

// Whether the event is reached: if the job has failed, in time. Meanwhile this
// rank is not silent.
bool DeviceSide::Await(const Event& event) {
  const Clock::Time begin = opening_.clock->Now();
  while (true) {
    const Result<bool> reached = event.Query();
    if (!reached.ok() || reached.value()) return true;
    opening_.executor->Poll();
    opening_.fabric->Tick(false);
    const double seconds = Seconds(opening_.clock->Now() - begin);
    if (!opening_.fabric->status().ok() && seconds > kIdleSeconds) return false;
    opening_.fabric->Wait(std::chrono::milliseconds(1));
  }
}

BufferView DeviceSide::pool() const {
  return {pool_.get(), pool_bytes_, device_->id()};
}

Collective& DeviceSide::collective() {
  if (nccl_ != nullptr) return *nccl_;
  return *staged_;
}

Stream& DeviceSide::stream(Channel channel) {
  return nccl_ != nullptr ? nccl_->stream(channel) : staged_->stream();
}

void DeviceSide::Fail(const Status& why) {
  if (nccl_ != nullptr) nccl_->Fail(why);
}

}  // namespace gradientflow
