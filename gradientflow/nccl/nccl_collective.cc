#include "gradientflow/nccl/nccl_collective.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <tuple>
#include <utility>

#include "gradientflow/base/str_cat.h"

// How NCCL collectives run and how they fail; channels.cc has how their ranks
// come together.
//
//   kOpen      Start() pushes to the queue of the channel; Poll() advances all
//              queues
//   kAborting  NCCL is aborted on threads of its own; this rank waits, for a
//              while, until the device has drained and a culprit is named
//   kFailed    all calls have ended with the reason; failure() tells the others
//   kClosed    by Close()
namespace gradientflow {
namespace {

// Number of calls that may end at a time without an allocation.
constexpr std::size_t kUsualCalls = 128;

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

// NCCL itself finds its way between and inside hosts.
CallGroup NcclCollective::GroupOf(const NcclArgs& args) {
  CallGroup group;
  group.rank = args.rank;
  group.size = args.size;
  group.all_share = true;
  return group;
}

NcclCollective::NcclCollective(NcclArgs args)
    : args_(std::move(args)),
      group_(GroupOf(args_)),
      channels_(args_, group_) {}

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
  ended_.Reserve(kUsualCalls);
  GF_RETURN_IF_ERROR(channels_.Open());
  Log(LogLevel::kInfo,
      StrCat("NCCL ", NcclVersionText(args_.api->version), " (",
             args_.api->path, "), rank ", args_.rank, " of ", args_.size,
             " on ", args_.device->description()));
  return Status();
}

void NcclCollective::Start(const CollectiveCall& call, Done done) {
  Status status = status_;
  if (status.ok()) status = CheckCall(call);
  if (!status.ok()) {
    ended_.Add(done, 0, std::move(status));
    return;
  }
  channels_.at(call.channel).Push(call, done);
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
  if (channels_.calls() == 0) return false;
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
  for (auto& queue : channels_.queues()) {
    if (state_ != State::kOpen) break;
    const Result<bool> moved = queue->Advance(&ended_);
    if (!moved.ok()) FailHere(moved.status());
    any = any || !moved.ok() || moved.value();
  }
  return any;
}

// NCCL never times out by itself, so a call that stands still is found here.
void NcclCollective::LookIfStanding() {
  for (auto& queue : channels_.queues()) {
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
    FailHere(
        Status(StatusCode::kDeadlineExceeded,
               StrCat("NCCL: rank ", args_.rank, " saw no call end for ",
                      stands, " s in ", queue->OldestCall(), Beside(*queue))));
  }
}

// What else may stand in the way of a call of `queue`: calls of other
// communicators.
std::string NcclCollective::Beside(const NcclQueue& queue) const {
  std::string text;
  for (const auto& other : channels_.queues()) {
    if (other.get() == &queue || other->calls() == 0) continue;
    text += StrCat("; in flight beside it, by another communicator: ",
                   other->OldestCall());
  }
  const std::size_t users = channels_.order().users();
  if (users > channels_.queues().size()) {
    text += StrCat("; ", users - channels_.queues().size(),
                   " communicators more of this process use ",
                   args_.device->description());
  }
  if (text.empty()) return text;
  return StrCat(
      text,
      ". Ranks that start calls of several communicators in different "
      "orders, or first calls more than ",
      args_.turn_seconds, " s apart, need a device with room for all of them");
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
  channels_.Abort();
}

// Ends the calls once their buffers are free. Returns whether it did.
bool NcclCollective::AdvanceAbort() {
  const double seconds = Seconds(args_.clock->Now() - aborting_since_);
  const bool drained = channels_.Drained();
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
  channels_.EndAll(status_, &ended_);
  return true;
}

std::string NcclCollective::OldestCall() const {
  std::string text;
  for (const auto& queue : channels_.queues()) {
    if (queue->calls() == 0) continue;
    text += StrCat(text.empty() ? "" : " and in ", queue->OldestCall());
  }
  return text;
}

Result<DeviceMemory> NcclCollective::Allocate(std::size_t bytes) {
  DeviceMemory memory;
  GF_RETURN_IF_ERROR(args_.device->RunCurrent([&]() -> Status {
    Result<DeviceMemory> made = channels_.memory().AllocateZeroed(bytes);
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
  return channels_.Register(data, bytes);
}

void NcclCollective::Deregister(const void* data) {
  if (state_ != State::kOpen) return;  // Gone with its communicator.
  channels_.Deregister(data);
}

// In good order if no call is in flight, otherwise by an abort.
bool NcclCollective::Close() {
  if (state_ == State::kClosed) return true;
  if (state_ == State::kOpen) {
    const Status closed = in_flight() > 0
                              ? Status(StatusCode::kAborted,
                                       "NCCL is closed with calls in flight")
                              : channels_.Close();
    if (!closed.ok()) BeginAbort(closed);
  }
  if (state_ == State::kOpen) {
    status_ = Status(StatusCode::kFailedPrecondition, "NCCL is closed");
    state_ = State::kClosed;
  } else {
    AwaitAbort();
    if (channels_.Drained()) state_ = State::kClosed;
  }
  ended_.Poll();
  return state_ == State::kClosed;
}

NcclCollective::~NcclCollective() {
  if (Close() || !channels_.LeaveBehind()) return;
  Log(LogLevel::kError, "NCCL: a communicator that hangs is left behind");
}

// Waits until the calls have ended and the device has finished their work, or
// until the time is over. Errors of the hook do not matter any more.
void NcclCollective::AwaitAbort() {
  const Clock::Time begin = args_.clock->Now();
  while (true) {
    Poll();
    const bool late =
        Seconds(args_.clock->Now() - begin) >= args_.abort_seconds;
    if (state_ == State::kFailed && (late || channels_.Drained())) return;
    if (args_.while_waiting) static_cast<void>(args_.while_waiting());
    std::this_thread::yield();
  }
}

void NcclCollective::Log(LogLevel level, const std::string& line) const {
  if (args_.logger != nullptr) args_.logger->Log(level, line);
}

}  // namespace gradientflow
