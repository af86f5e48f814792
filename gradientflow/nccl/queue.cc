#include "gradientflow/nccl/queue.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "gradientflow/base/looks.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/nccl/exchange.h"
#include "gradientflow/nccl/passes.h"
#include "transports/wire.h"

// The way of a call through a queue:
//
//   Push()       operations_, with the plan of the call (plan.h)
//   IssueNext()  when it is the call's turn among all calls of the device
//                (launch_order.h): packs elements that convert into a half of
//                the staging (passes.h), and gives the call to NCCL (issue.h).
//                A non-blocking NCCL may take a while to accept it: issuing_,
//                until comm_.Ready()
//   Continue()   after the first phase of an exchange: adds up (exchange.h),
//                and gives NCCL the last phase
//   Settle()     submits the pass over the result, then records slot->end, or
//                tells the caller that all of it is `submitted`
//   Retire()     ends the calls at the front of the queue whose end is reached
//
// operations_[0, issued_) have been issued. The end of a call that is submitted
// ahead is not asked for; Passed() says it, so such a call needs no slot.
namespace gradientflow {
namespace {

// Calls on the device at a time. Further calls wait in the queue.
constexpr std::size_t kSlots = 64;
// Staging grows in steps of this size, so that similar sizes do not make many
// of them.
constexpr std::size_t kStagingUnit = std::size_t{2} << 20;
constexpr std::size_t kHalfUnit = 256;  // Halves begin on multiples of this.
// A device that has nothing to do comes to an event within this time, even if
// it is shared.
constexpr Clock::Time kAnswerPatience = std::chrono::milliseconds(200);

}  // namespace

Result<std::unique_ptr<NcclQueue>> NcclQueue::Create(
    const NcclQueueArgs& args, std::shared_ptr<const NcclApi> api,
    std::size_t staging_bytes) {
  std::unique_ptr<NcclQueue> queue(new NcclQueue(args, std::move(api)));
  GF_RETURN_IF_ERROR(queue->Allocate());
  if (staging_bytes > 0) GF_RETURN_IF_ERROR(queue->GrowStaging(staging_bytes));
  return queue;
}

NcclQueue::NcclQueue(const NcclQueueArgs& args,
                     std::shared_ptr<const NcclApi> api)
    : args_(args), comm_(std::move(api), args.group.rank, args.group.size) {
  args_.order->Enter(this);
}

NcclQueue::~NcclQueue() { args_.order->Exit(this); }

Status NcclQueue::Allocate() {
  Device& device = *args_.device;
  for (auto* made : {&before_, &wire_, &after_}) {
    Result<std::unique_ptr<Stream>> stream = device.NewStream(/*urgent=*/true);
    if (!stream.ok()) return stream.status();
    *made = std::move(stream).value();
  }
  Result<DeviceMemory> verdicts =
      device.Allocate((kSlots + 1) * sizeof(Finding));
  if (!verdicts.ok()) return verdicts.status();
  verdicts_ = std::move(verdicts).value();
  Result<DeviceMemory> seen = device.AllocatePinned(kSlots * sizeof(Finding));
  if (!seen.ok()) return seen.status();
  seen_ = std::move(seen).value();
  slots_.resize(kSlots);
  operations_.reserve(kSlots);
  spare_.reserve(kSlots);
  for (auto* made :
       {&ahead_end_, &half_end_, &half_free_[0], &half_free_[1], &ordered_}) {
    Result<std::unique_ptr<Event>> event = device.NewEvent();
    if (!event.ok()) return event.status();
    *made = std::move(event).value();
  }
  for (std::size_t i = 0; i < kSlots; ++i) {
    Result<std::unique_ptr<Event>> event = device.NewEvent();
    if (!event.ok()) return event.status();
    slots_[i].end = std::move(event).value();
    slots_[i].device = reinterpret_cast<Finding*>(verdicts_.get()) + i;
    slots_[i].host = reinterpret_cast<Finding*>(seen_.get()) + i;
  }
  return Status();
}

Status NcclQueue::GrowStaging(std::size_t bytes) {
  Staging grown;
  const std::size_t least = std::max(bytes, 2 * staging_.bytes);
  grown.bytes = (least + kStagingUnit - 1) / kStagingUnit * kStagingUnit;
  Result<NcclMemory::Part> part = args_.memory->Allocate(grown.bytes);
  if (!part.ok()) return part.status();
  grown.memory = std::move(part.value().data);
  grown.from_nccl = part.value().from_nccl;
  if (staging_.memory != nullptr) outgrown_.push_back(std::move(staging_));
  staging_ = std::move(grown);
  return Status();
}

// The ranks have the same staging memory at the start, but each lets it grow by
// itself; so only the first becomes a window.
Status NcclQueue::BeginWindow() {
  if (staging_.memory == nullptr || !comm_.has_windows()) return Status();
  return comm_.BeginWindow(staging_.memory.get(), staging_.bytes,
                           &staging_.window);
}

void NcclQueue::RegisterStaging() {
  if (staging_.memory == nullptr || staging_.handle != nullptr) return;
  if (staging_.window != nullptr) return;
  const Status done =
      comm_.Register(staging_.memory.get(), staging_.bytes, &staging_.handle);
  if (!done.ok() && args_.logger != nullptr) {
    args_.logger->Log(LogLevel::kWarning,
                      StrCat("without registered staging: ", done.message()));
  }
}

void NcclQueue::DeregisterStaging() {
  outgrown_.push_back(std::move(staging_));
  for (Staging& each : outgrown_) {
    comm_.EndWindow(std::exchange(each.window, nullptr));
    comm_.Deregister(std::exchange(each.handle, nullptr));
  }
  staging_ = std::move(outgrown_.back());
  outgrown_.pop_back();
}

void NcclQueue::Push(const CollectiveCall& call, Done done) {
  std::unique_ptr<NcclOperation> operation;
  if (spare_.empty()) {
    operation = std::make_unique<NcclOperation>();
  } else {
    operation = std::move(spare_.back());
    spare_.pop_back();
  }
  operation->call = call;
  if (call.kind != CollectiveKind::kAllreduce) operation->call.extents.clear();
  operation->plan = PlanNcclCall(operation->call, args_.group.size, args_.sums);
  operation->done = done;
  operation->sequence = next_sequence_++;
  operation->begin = args_.clock->Now();
  operation->slot = nullptr;
  operation->spreading = false;
  operation->settled = false;
  operations_.push_back(std::move(operation));
  args_.order->Join(this);
}

Status NcclQueue::IssueNext() {
  NcclOperation& operation = *operations_[issued_++];
  const CallBuffers buffers = BuffersOf(operation.call, args_.group);
  // If both buffers are empty, no rank waits for this one.
  if (buffers.input + buffers.output == 0 &&
      operation.call.kind != CollectiveKind::kBarrier) {
    operation.settled = true;
    args_.order->Leave(this);
    if (operation.ahead()) operation.call.submitted(Status());
    return Status();
  }
  if (!operation.ahead()) {
    operation.slot = &slots_[next_slot_];
    next_slot_ = (next_slot_ + 1) % kSlots;
    ++slots_taken_;
  }
  GF_RETURN_IF_ERROR(TakeHalf(&operation, StagingBytes(operation)));
  // If before_ has no work for this call, the wire need not wait for it.
  const bool direct =
      operation.call.before.run != nullptr && operation.staging == nullptr;
  Stream& first = direct ? *wire_ : *before_;
  GF_RETURN_IF_ERROR(operation.call.before(first));
  GF_RETURN_IF_ERROR(RunBefore(
      operation, {args_.device, &first, operation.staging, args_.group.rank}));
  if (!direct) GF_RETURN_IF_ERROR(Order(*before_, *wire_));
  issuing_ = true;
  return gradientflow::Issue(operation, Target(operation));
}

// What `then` is given from now on runs after what `first` has been given.
Status NcclQueue::Order(Stream& first, Stream& then) {
  GF_RETURN_IF_ERROR(first.Record(ordered_.get()));
  return then.Wait(*ordered_);
}

Status NcclQueue::Join() {
  if (!after_has_work_) return Status();
  GF_RETURN_IF_ERROR(Order(*after_, *wire_));
  after_has_work_ = false;
  return Status();
}

// Gives the call the half of the staging memory that the call before the last
// one had. The call waits for that on the device.
Status NcclQueue::TakeHalf(NcclOperation* operation, std::size_t bytes) {
  operation->staging = nullptr;
  operation->staging_free = nullptr;
  if (bytes == 0) return Status();
  const std::size_t half = (bytes + kHalfUnit - 1) / kHalfUnit * kHalfUnit;
  if (2 * half > staging_.bytes) {
    GF_RETURN_IF_ERROR(GrowStaging(2 * half));
    RegisterStaging();
  }
  half_ = 1 - half_;
  // The unit of the memory is a multiple of this one.
  operation->staging =
      staging_.memory.get() + (half_ == 1 ? staging_.bytes / 2 : 0);
  operation->staging_free = half_free_[half_].get();
  return before_->Wait(*operation->staging_free);
}

std::size_t NcclQueue::StagingBytes(const NcclOperation& operation) const {
  if (operation.plan.exchange) {
    return ExchangeStagingBytes(operation, args_.group.size);
  }
  if (!operation.plan.staged) return 0;
  return operation.call.count * SizeOf(operation.plan.type);
}

IssueTarget NcclQueue::Target(const NcclOperation& operation) {
  return {wire_.get(),       &comm_,
          args_.group.rank,  args_.group.size,
          operation.staging, verdicts_.get() + kSlots * sizeof(Finding)};
}

// NCCL has accepted what it was given.
Status NcclQueue::Continue(NcclOperation* operation) {
  if (operation->plan.exchange && !operation->spreading) {
    GF_RETURN_IF_ERROR(
        SubmitSums(*operation, *args_.device, Target(*operation)));
    operation->spreading = Spreads(*operation);
    if (operation->spreading)
      return IssueSpread(*operation, Target(*operation));
  }
  return Settle(operation);
}

Status NcclQueue::Settle(NcclOperation* operation) {
  issuing_ = false;
  operation->settled = true;
  args_.order->Leave(this);
  Stream& last = operation->plan.staged ? *after_ : *wire_;
  if (operation->plan.staged) {
    after_has_work_ = true;
    GF_RETURN_IF_ERROR(Order(*wire_, *after_));
  }
  GF_RETURN_IF_ERROR(RunAfter(
      *operation, {args_.device, &last, operation->staging, args_.group.rank}));
  if (operation->staging_free != nullptr) {
    GF_RETURN_IF_ERROR(last.Record(operation->staging_free));
  }
  if (!operation->ahead()) return last.Record(operation->slot->end.get());
  GF_RETURN_IF_ERROR(CountAhead(last));
  operation->call.submitted(Status());
  return Status();
}

// The newer half becomes the older one when it is full.
Status NcclQueue::CountAhead(Stream& last) {
  if (++ahead_newer_ < kAhead / 2 || ahead_older_ > 0) return Status();
  ahead_older_ = std::exchange(ahead_newer_, 0);
  return last.Record(half_end_.get());
}

// Returns whether the next call may be submitted.
Result<bool> NcclQueue::HasRoom() {
  if (issued_ == operations_.size() || slots_taken_ == kSlots) return false;
  if (!operations_[issued_]->ahead() || ahead_newer_ < kAhead / 2) return true;
  const Clock::Time now = args_.clock->Now();
  if (now - looked_at_ < kLookInterval) return false;
  looked_at_ = now;
  Result<bool> reached = half_end_->Query();
  if (!reached.ok() || !reached.value()) return reached;
  ahead_older_ = std::exchange(ahead_newer_, 0);
  GF_RETURN_IF_ERROR(wire_->Record(half_end_.get()));
  return true;
}

// Returns whether NCCL may have the next call, for which there is room.
bool NcclQueue::HasTurn() {
  if (args_.order->May(this)) {
    no_turn_since_.reset();
    return true;
  }
  const Clock::Time now = args_.clock->Now();
  if (!no_turn_since_) no_turn_since_ = now;
  if (Seconds(now - *no_turn_since_) < args_.turn_seconds) return false;
  args_.order->Overtake(this);
  no_turn_since_.reset();
  return true;
}

Result<bool> NcclQueue::Issue() {
  bool moved = false;
  while (true) {
    if (issuing_) {
      Result<bool> ready = comm_.Ready();
      if (!ready.ok() || !ready.value()) {
        return ready.ok() ? Result<bool>(moved) : ready;
      }
      GF_RETURN_IF_ERROR(Continue(operations_[issued_ - 1].get()));
      moved = true;
      if (issuing_) continue;
    }
    const Result<bool> room = HasRoom();
    if (!room.ok()) return room;
    if (!room.value() && issued_ < operations_.size()) {
      args_.order->StepAside(this);
    }
    if (!room.value() || !HasTurn()) return moved;
    GF_RETURN_IF_ERROR(IssueNext());
    moved = true;
  }
}

Result<bool> NcclQueue::Advance(DoneQueue* ended) {
  if (operations_.empty()) return false;
  Result<bool> issued = Issue();
  if (!issued.ok()) return issued;
  // This is the only place where the loss of a rank shows.
  if (!issuing_) {
    Result<bool> ready = comm_.Ready();
    if (!ready.ok()) return ready;
  }
  Result<bool> retired = Retire(ended);
  if (!retired.ok()) return retired;
  return issued.value() || retired.value();
}

Result<bool> NcclQueue::Retire(DoneQueue* ended) {
  Status failure;
  std::size_t count = 0;
  for (; count < issued_; ++count) {
    const NcclOperation& operation = *operations_[count];
    if (!operation.settled) break;
    if (operation.ahead() && operation.sequence > passed_) break;
    if (operation.slot != nullptr) {
      Result<bool> reached = operation.slot->end->Query();
      if (!reached.ok()) failure = reached.status();
      if (!reached.ok() || !reached.value()) break;
      --slots_taken_;
    }
    Finish(operation, ended);
  }
  if (count == 0) return failure.ok() ? Result<bool>(false) : failure;
  const auto end = operations_.begin() + static_cast<std::ptrdiff_t>(count);
  std::move(operations_.begin(), end, std::back_inserter(spare_));
  operations_.erase(operations_.begin(), end);
  issued_ -= count;
  last_end_ = args_.clock->Now();
  return failure.ok() ? Result<bool>(true) : failure;
}

bool NcclQueue::Stands() {
  const bool all_ahead = std::all_of(
      operations_.begin(), operations_.end(), [](const auto& operation) {
        return operation->ahead() && operation->settled;
      });
  if (!all_ahead) return true;
  // The event is recorded when it is first asked for, since nearly all steps
  // end before that. An error counts as standing.
  const Clock::Time now = args_.clock->Now();
  if (!stands_asked_at_) {
    if (!Join().ok() || !wire_->Record(ahead_end_.get()).ok()) return true;
    stands_asked_at_ = now;
    return false;
  }
  const Result<bool> reached = ahead_end_->Query();
  if (!reached.ok()) return true;
  if (!reached.value()) return now - *stands_asked_at_ >= kAnswerPatience;
  stands_asked_at_.reset();
  last_end_ = now;
  return false;
}

// An error of calls behind these shows again at the next Advance().
void NcclQueue::Passed(DoneQueue* ended) {
  for (std::size_t i = 0; i < issued_ && operations_[i]->settled; ++i) {
    passed_ = operations_[i]->sequence;
  }
  ahead_older_ = ahead_newer_ = 0;
  stands_asked_at_.reset();
  static_cast<void>(Retire(ended));
}

void NcclQueue::Finish(const NcclOperation& operation, DoneQueue* ended) {
  const CollectiveCall& call = operation.call;
  const Clock::Time now = args_.clock->Now();
  bytes_sent_ +=
      SentBytes(call, operation.plan, args_.group.rank, args_.group.size);
  if (args_.recorder != nullptr) {
    args_.recorder->Record({"collective", Name(call.kind), call.step,
                            operation.sequence, call.count * SizeOf(call.wire),
                            operation.begin, now});
  }
  if (args_.trace && args_.logger != nullptr) Trace(operation, now);
  ended->Add(operation.done, FoundNonfinite(operation) ? kFlagNonfinite : 0,
             Status());
}

void NcclQueue::Trace(const NcclOperation& operation, Clock::Time now) const {
  const CollectiveCall& call = operation.call;
  args_.logger->Log(
      LogLevel::kInfo,
      TraceLine(call, operation.sequence,
                StrCat("1 segments, nccl (", Text(operation.plan, call), ")"),
                Seconds(now - operation.begin)));
}

Clock::Time NcclQueue::standing_since() const {
  return std::max(last_end_, operations_.front()->begin);
}

bool NcclQueue::NeedsAll() const {
  switch (operations_.front()->call.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kAllgather:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBarrier:
      return true;
    default:
      return false;
  }
}

std::string NcclQueue::OldestCall() const {
  return Describe(operations_.front()->call, operations_.front()->sequence);
}

bool NcclQueue::Drained() {
  if (!comm_.abort_done()) return false;
  // The rest of an aborted call ends by itself.
  if (!end_) AddWork(&end_.emplace(*args_.device));
  return end_->Reached();
}

void NcclQueue::EndAll(const Status& why, DoneQueue* ended) {
  for (auto& operation : operations_) {
    ended->Add(operation->done, 0,
               Status(why.code(),
                      StrCat(why.message(), "; ended ",
                             Describe(operation->call, operation->sequence))));
  }
  operations_.clear();
  args_.order->Exit(this);
  issued_ = slots_taken_ = 0;
  issuing_ = false;
}

}  // namespace gradientflow
