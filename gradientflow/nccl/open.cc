#include <array>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/nccl/nccl_collective.h"

// How a collective begins and ends.
namespace gradientflow {
namespace {

// Number of calls that may end at a time without an allocation.
constexpr std::size_t kUsualCalls = 128;

// What rank 0 gives to all ranks.
struct Invitation {
  char begun;  // 1 if the ids are good.
  nccl::UniqueId ids[kChannels];
};

Status CheckArgs(const NcclArgs& args) {
  if (args.api != nullptr && args.device != nullptr && args.clock != nullptr &&
      args.broadcast != nullptr && args.size > 0 && args.rank >= 0 &&
      args.rank < args.size) {
    return Status();
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat("NCCL: rank ", args.rank, " of ", args.size,
                       ": expected a rank below the size, a library, a device, "
                       "a clock and a broadcast"));
}

}  // namespace

Result<std::unique_ptr<NcclCollective>> NcclCollective::Create(NcclArgs args) {
  GF_RETURN_IF_ERROR(CheckArgs(args));
  std::unique_ptr<NcclCollective> made(new NcclCollective(std::move(args)));
  Status status = made->Open();
  if (status.ok()) return made;
  made->BeginAbort(status);
  const std::string culprits = made->Culprits();
  if (!culprits.empty()) {
    status = Status(status.code(), StrCat(status.message(), "; ", culprits));
  }
  return status;
}

Status NcclCollective::Open() {
  return args_.device->RunCurrent([this] { return OpenQueues(); });
}

Status NcclCollective::OpenQueues() {
  const NcclQueueArgs parts{args_.device, args_.clock, args_.recorder,
                            args_.logger, args_.trace, args_.sums,
                            group_};
  // Comes before any rank waits for this one.
  for (auto& queue : queues_) {
    Result<std::unique_ptr<NcclQueue>> made =
        NcclQueue::Create(parts, args_.api, args_.staging_bytes);
    if (!made.ok()) return made.status();
    queue = std::move(made).value();
  }
  ended_.Reserve(kUsualCalls);
  std::array<nccl::UniqueId, kChannels> ids;
  GF_RETURN_IF_ERROR(ShareIds(&ids));
  for (int channel = 0; channel < kChannels; ++channel) {
    NcclQueue& queue = *queues_[channel];
    GF_RETURN_IF_ERROR(queue.comm().Begin(ids[channel]));
    GF_RETURN_IF_ERROR(WaitUntil([&queue] { return queue.comm().Ready(); },
                                 args_.init_seconds,
                                 "for all ranks to connect"));
    if (args_.windows) GF_RETURN_IF_ERROR(queue.BeginWindow());
    GF_RETURN_IF_ERROR(WaitUntil([&queue] { return queue.comm().Ready(); },
                                 args_.init_seconds,
                                 "for all ranks to map their memory"));
    queue.RegisterStaging();
  }
  GF_RETURN_IF_ERROR(CheckDevice());
  Log(LogLevel::kInfo,
      StrCat("NCCL ", NcclVersionText(args_.api->version), " (",
             args_.api->path, "), rank ", args_.rank, " of ", args_.size,
             " on ", args_.device->description()));
  return Status();
}

Status NcclCollective::ShareIds(std::array<nccl::UniqueId, kChannels>* ids) {
  Invitation invitation = {};
  Status made;
  if (args_.rank == 0) {
    NcclComm& comm = queues_[0]->comm();
    for (nccl::UniqueId& id : invitation.ids) {
      if (!made.ok()) break;
      made = comm.Check("ncclGetUniqueId", args_.api->get_unique_id(&id));
    }
    invitation.begun = made.ok() ? 1 : 0;
  }
  // The other ranks have to be told of a failure, too, because they wait.
  const Status shared = args_.broadcast(&invitation, sizeof(invitation));
  GF_RETURN_IF_ERROR(made);
  GF_RETURN_IF_ERROR(shared);
  if (invitation.begun != 1) {
    return Status(StatusCode::kAborted, "NCCL: rank 0 could not begin");
  }
  std::memcpy(ids->data(), invitation.ids, sizeof(invitation.ids));
  return Status();
}

Status NcclCollective::CheckDevice() {
  NcclComm& comm = queues_[0]->comm();
  int device = -1;
  GF_RETURN_IF_ERROR(comm.Check(
      "ncclCommCuDevice", args_.api->comm_cu_device(comm.get(), &device)));
  if (device == args_.device->id().index) return Status();
  return Status(
      StatusCode::kFailedPrecondition,
      StrCat("NCCL: took device ", device, ", expected ",
             args_.device->id().index, " (", args_.device->description(), ")"));
}

Status NcclCollective::WaitUntil(const std::function<Result<bool>()>& there,
                                 double seconds, const std::string& what) {
  const Clock::Time begin = args_.clock->Now();
  while (true) {
    const Result<bool> now = there();
    if (!now.ok()) return now.status();
    if (now.value()) return Status();
    if (Seconds(args_.clock->Now() - begin) > seconds) {
      return Status(StatusCode::kDeadlineExceeded,
                    StrCat("NCCL: rank ", args_.rank, " of ", args_.size,
                           " waited ", seconds, " s ", what));
    }
    if (args_.while_waiting) {
      GF_RETURN_IF_ERROR(args_.while_waiting());
    } else {
      std::this_thread::yield();
    }
  }
}

Status NcclCollective::CloseQueues() {
  for (int channel = 0; channel < kChannels; ++channel) {
    NcclQueue& queue = *queues_[channel];
    for (const Registered& memory : registered_[channel]) {
      queue.comm().Deregister(memory.handle);
    }
    queue.DeregisterStaging();
    GF_RETURN_IF_ERROR(queue.comm().Finalize());
    GF_RETURN_IF_ERROR(WaitUntil([&queue] { return queue.comm().Ready(); },
                                 args_.close_seconds, "to finalize"));
    queue.comm().Destroy();
  }
  return Status();
}

// In good order if no call is in flight, otherwise by an abort.
bool NcclCollective::Close() {
  if (state_ == State::kClosed) return true;
  if (state_ == State::kOpen) {
    const Status closed =
        in_flight() > 0
            ? Status(StatusCode::kAborted,
                     "NCCL is closed with calls in flight")
            : args_.device->RunCurrent([this] { return CloseQueues(); });
    if (!closed.ok()) BeginAbort(closed);
  }
  if (state_ == State::kOpen) {
    status_ = Status(StatusCode::kFailedPrecondition, "NCCL is closed");
    state_ = State::kClosed;
  } else {
    AwaitAbort();
    if (Drained()) state_ = State::kClosed;
  }
  ended_.Poll();
  return state_ == State::kClosed;
}

NcclCollective::~NcclCollective() {
  const bool drained = Close();
  for (auto& queue : queues_) {
    if (drained || queue == nullptr || queue->Drained()) continue;
    // The device may still write to this memory, and to free it would mean to
    // wait.
    Log(LogLevel::kError, "NCCL: a communicator that hangs is left behind");
    static_cast<void>(queue.release());
  }
}

// Waits until the calls have ended and the device has finished their work, or
// until the time is over. Errors of the hook do not matter any more.
void NcclCollective::AwaitAbort() {
  const Clock::Time begin = args_.clock->Now();
  while (true) {
    Poll();
    const bool late =
        Seconds(args_.clock->Now() - begin) >= args_.abort_seconds;
    if (state_ == State::kFailed && (late || Drained())) return;
    if (args_.while_waiting) static_cast<void>(args_.while_waiting());
    std::this_thread::yield();
  }
}

}  // namespace gradientflow
