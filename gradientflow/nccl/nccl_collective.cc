#include "gradientflow/nccl/nccl_collective.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How NCCL collectives run and how they fail; open.cc has how they begin and
// end.
//
//   kOpen      Start() pushes to the queue of the channel, Poll() advances
//   queues kAborting  NCCL is aborted on threads of its own; this rank waits
//   until the
//              device has drained and someone has named a culprit, for a while
//   kFailed    all calls have ended with the reason; failure() tells the others
//   kClosed    by Close()
namespace gradientflow {

NcclCollective::NcclCollective(NcclArgs args) : args_(std::move(args)) {
  group_.rank = args_.rank;
  group_.size = args_.size;
  // NCCL itself finds its way between and inside hosts.
  group_.all_share = true;
}

void NcclCollective::Start(const CollectiveCall& call, Done done) {
  Status status = status_;
  if (status.ok()) status = CheckCall(call);
  if (!status.ok()) {
    ended_.Add(done, 0, std::move(status));
    return;
  }
  queue(call.channel).Push(call, done);
  Advance();
}

// Checks that the buffers are the device's: a wrong address would be an error
// that ends the device for this process.
Status NcclCollective::CheckCall(const CollectiveCall& call) const {
  if (Reduces(call.kind) && IsBitwise(call.op)) {
    return Status(StatusCode::kUnimplemented,
                  StrCat(Name(call.kind), ": NCCL has no ", Name(call.op),
                         ", only sum, min, max, product and mean"));
  }
  if (call.feed != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(Name(call.kind), ": NCCL takes no feed"));
  }
  const CallBuffers needs = BuffersOf(call, group_);
  const std::tuple<const char*, const void*, std::size_t> buffers[] = {
      {"input", call.input, needs.input},
      {"output", call.output, needs.output}};
  for (const auto& [name, data, count] : buffers) {
    if (count == 0 || args_.device->Owns(data)) continue;
    return Status(
        StatusCode::kInvalidArgument,
        StrCat(Name(call.kind), ": ", name, " is at ", data,
               ", which is not memory of ", args_.device->description()));
  }
  return Status();
}

bool NcclCollective::Poll() {
  bool moved = ended_.Poll();
  if (state_ == State::kOpen) {
    moved = Advance() || moved;
    LookIfStanding();
  }
  if (state_ == State::kAborting) moved = AdvanceAbort() || moved;
  return ended_.Poll() || moved;
}

bool NcclCollective::Advance() {
  const bool idle =
      std::all_of(queues_.begin(), queues_.end(),
                  [](const auto& queue) { return queue->calls() == 0; });
  if (idle) return false;
  bool any = false;
  const Status status = args_.device->RunCurrent([this, &any] {
    any = AdvanceQueues();
    return Status();
  });
  if (!status.ok()) FailHere(status);
  return any || !status.ok();
}

bool NcclCollective::AdvanceQueues() {
  bool any = false;
  for (auto& queue : queues_) {
    if (state_ != State::kOpen) break;
    const Result<bool> moved = queue->Advance(&ended_);
    if (!moved.ok()) FailHere(moved.status());
    any = any || !moved.ok() || moved.value();
  }
  return any;
}

// NCCL never times out by itself, so a call that stands still is found here.
void NcclCollective::LookIfStanding() {
  for (auto& queue : queues_) {
    if (state_ != State::kOpen || queue->calls() == 0) continue;
    const double stands = Seconds(args_.clock->Now() - queue->standing_since());
    const double soonest =
        args_.timeout_seconds > 0
            ? std::min(args_.standing_seconds, args_.timeout_seconds)
            : args_.standing_seconds;
    if (stands <= soonest || !queue->Stands()) continue;
    if (stands > args_.standing_seconds && args_.on_standing &&
        queue->NeedsAll()) {
      args_.on_standing();
    }
    if (args_.timeout_seconds <= 0 || stands <= args_.timeout_seconds) continue;
    FailHere(Status(StatusCode::kDeadlineExceeded,
                    StrCat("NCCL: rank ", args_.rank, " saw no call end for ",
                           stands, " s in ", queue->OldestCall())));
  }
}

std::string NcclCollective::Culprits() const {
  return args_.culprits ? args_.culprits() : std::string();
}

// An error that was found on this rank. Others may know who has caused it.
void NcclCollective::FailHere(const Status& why) {
  if (state_ != State::kOpen) return;
  culprit_open_ = true;
  BeginAbort(why);
}

// The reason from elsewhere names the culprit, so it replaces one that this
// rank found itself and that names none.
void NcclCollective::Fail(const Status& why) {
  if (state_ == State::kOpen) return BeginAbort(why);
  if (state_ != State::kAborting || !std::exchange(culprit_open_, false)) {
    return;
  }
  status_ =
      Status(why.code(),
             StrCat(why.message(), " (seen first: ", status_.message(), ")"));
}

void NcclCollective::BeginAbort(const Status& why) {
  state_ = State::kAborting;
  status_ = why;
  aborting_since_ = args_.clock->Now();
  Log(LogLevel::kError, StrCat("NCCL is aborted: ", why.message()));
  for (auto& queue : queues_) {
    if (queue != nullptr) queue->comm().Abort(args_.device->CurrentSetter());
  }
}

bool NcclCollective::Drained() {
  bool drained = true;
  for (auto& queue : queues_) {
    drained = (queue == nullptr || queue->Drained()) && drained;
  }
  return drained;
}

// Ends the calls once their buffers are free. Returns whether it did.
bool NcclCollective::AdvanceAbort() {
  const double seconds = Seconds(args_.clock->Now() - aborting_since_);
  const bool drained = Drained();
  if (!drained && seconds < args_.abort_seconds) return false;
  std::string notes;
  if (culprit_open_) {
    const std::string culprits = Culprits();
    if (culprits.empty() && args_.culprits && seconds < args_.culprit_seconds) {
      return false;
    }
    if (!culprits.empty()) notes += StrCat("; ", culprits);
  }
  if (!drained) {
    notes += StrCat("; NCCL did not give the buffers back within ",
                    args_.abort_seconds, " s");
  }
  culprit_open_ = false;
  status_ = Status(status_.code(), status_.message() + notes);
  state_ = State::kFailed;
  for (auto& queue : queues_) {
    if (queue != nullptr) queue->EndAll(status_, &ended_);
  }
  return true;
}

std::size_t NcclCollective::in_flight() const {
  std::size_t calls = ended_.size();
  for (const auto& queue : queues_) {
    if (queue != nullptr) calls += queue->calls();
  }
  return calls;
}

std::string NcclCollective::OldestCall() const {
  std::string text;
  for (const auto& queue : queues_) {
    if (queue->calls() == 0) continue;
    text += StrCat(text.empty() ? "" : " and in ", queue->OldestCall());
  }
  return text;
}

Result<DeviceMemory> NcclCollective::Allocate(std::size_t bytes) {
  DeviceMemory memory;
  GF_RETURN_IF_ERROR(args_.device->RunCurrent([&]() -> Status {
    Result<DeviceMemory> made = AllocateForNccl(args_.api, args_.device, bytes);
    if (!made.ok()) return made.status();
    memory = std::move(made).value();
    return Status();
  }));
  return memory;
}

Status NcclCollective::Register(void* data, std::size_t bytes) {
  GF_RETURN_IF_ERROR(status_);
  if (in_flight() > 0) {
    return Status(StatusCode::kFailedPrecondition,
                  "NCCL: memory is registered before calls, not during them");
  }
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

void NcclCollective::Deregister(const void* data) {
  if (state_ != State::kOpen) return;  // Gone with its communicator.
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

void NcclCollective::Log(LogLevel level, const std::string& line) const {
  if (args_.logger != nullptr) args_.logger->Log(level, line);
}

}  // namespace gradientflow
