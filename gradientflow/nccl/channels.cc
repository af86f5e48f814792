#include "gradientflow/nccl/channels.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// What rank 0 gives to all ranks.
struct Invitation {
  char begun;  // 1 if the ids are good.
  nccl::UniqueId ids[kChannels];
};

}  // namespace

Status NcclChannels::Open() {
  return args_.device->RunCurrent([this] { return OpenQueues(); });
}

Status NcclChannels::Close() {
  return args_.device->RunCurrent([this] { return CloseQueues(); });
}

Status NcclChannels::OpenQueues() {
  order_ = LaunchOrder::Of(args_.device->unique_id());
  NcclQueueArgs parts;
  parts.device = args_.device;
  parts.memory = &memory_;
  parts.order = order_.get();
  parts.turn_seconds = args_.turn_seconds;
  parts.clock = args_.clock;
  parts.recorder = args_.recorder;
  parts.logger = args_.logger;
  parts.trace = args_.trace;
  parts.sums = args_.sums;
  parts.group = group_;
  // Comes before any rank waits for this one.
  for (auto& queue : queues_) {
    Result<std::unique_ptr<NcclQueue>> made =
        NcclQueue::Create(parts, args_.api, args_.staging_bytes);
    if (!made.ok()) return made.status();
    queue = std::move(made).value();
  }
  std::array<nccl::UniqueId, kChannels> ids;
  GF_RETURN_IF_ERROR(ShareIds(&ids));
  const Result<bool> windows = CanHaveWindows();
  if (!windows.ok()) return windows.status();
  for (int channel = 0; channel < kChannels; ++channel) {
    NcclQueue& queue = *queues_[channel];
    GF_RETURN_IF_ERROR(queue.comm().Begin(ids[channel]));
    GF_RETURN_IF_ERROR(WaitUntil([&queue] { return queue.comm().Ready(); },
                                 args_.init_seconds,
                                 "for all ranks to connect"));
    if (windows.value()) GF_RETURN_IF_ERROR(queue.BeginWindow());
    GF_RETURN_IF_ERROR(WaitUntil([&queue] { return queue.comm().Ready(); },
                                 args_.init_seconds,
                                 "for all ranks to map their memory"));
    queue.RegisterStaging();
  }
  return CheckDevice();
}

Status NcclChannels::ShareIds(std::array<nccl::UniqueId, kChannels>* ids) {
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

// A window is made by all ranks or by none, and one of them may have found no
// memory of NCCL's. The versions of NCCL are the same.
Result<bool> NcclChannels::CanHaveWindows() {
  if (!args_.windows || !queues_[0]->comm().has_windows()) return false;
  const bool mine =
      std::all_of(queues_.begin(), queues_.end(),
                  [](const auto& queue) { return queue->FitsWindow(); });
  if (args_.all_agree) return args_.all_agree(mine);
  if (mine) return true;
  return Status(StatusCode::kResourceExhausted,
                StrCat("NCCL: rank ", args_.rank,
                       " has no memory for a window, and the ranks have no way "
                       "to agree on doing without"));
}

Status NcclChannels::CheckDevice() {
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

Status NcclChannels::WaitUntil(const std::function<Result<bool>()>& there,
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

Status NcclChannels::CloseQueues() {
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

std::size_t NcclChannels::calls() const {
  std::size_t calls = 0;
  for (const auto& queue : queues_) {
    if (queue != nullptr) calls += queue->calls();
  }
  return calls;
}

Status NcclChannels::Register(void* data, std::size_t bytes) {
  return args_.device->RunCurrent([&]() -> Status {
    for (int channel = 0; channel < kChannels; ++channel) {
      NcclComm& comm = queues_[channel]->comm();
      if (!comm.can_register()) return Status();
      void* handle = nullptr;
      GF_RETURN_IF_ERROR(comm.Register(data, bytes, &handle));
      if (handle != nullptr) registered_[channel].push_back({data, handle});
    }
    return Status();
  });
}

void NcclChannels::Deregister(const void* data) {
  static_cast<void>(args_.device->RunCurrent([&] {
    for (int channel = 0; channel < kChannels; ++channel) {
      std::erase_if(registered_[channel], [&](const Registered& memory) {
        if (memory.data != data) return false;
        queues_[channel]->comm().Deregister(memory.handle);
        return true;
      });
    }
    return Status();
  }));
}

// NCCL may never accept what an aborted queue has given it, and gets nothing
// more from it, so the other communicators of the device must not wait for it.
void NcclChannels::Abort() {
  for (auto& queue : queues_) {
    if (queue == nullptr) continue;
    order_->StepAside(queue.get());
    queue->comm().Abort(args_.device->CurrentSetter());
  }
}

bool NcclChannels::abort_done() const {
  return std::all_of(queues_.begin(), queues_.end(), [](const auto& queue) {
    return queue == nullptr || queue->comm().abort_done();
  });
}

bool NcclChannels::Drained() {
  bool drained = true;
  for (auto& queue : queues_) {
    drained = (queue == nullptr || queue->Drained()) && drained;
  }
  return drained;
}

void NcclChannels::EndAll(const Status& why, DoneQueue* ended) {
  for (auto& queue : queues_) {
    if (queue != nullptr) queue->EndAll(why, ended);
  }
}

// The device may still write to their memory, and to free it would mean to
// wait.
bool NcclChannels::LeaveBehind() {
  bool any = false;
  for (auto& queue : queues_) {
    if (queue == nullptr || queue->Drained()) continue;
    order_->Exit(queue.get());
    gradientflow::LeaveBehind(queue.release());
    any = true;
  }
  return any;
}

}  // namespace gradientflow
