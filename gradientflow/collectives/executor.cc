#include "gradientflow/collectives/executor.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/alone.h"

// How a call gets through the executor:
//
//   Start()   makes the call an Operation, with its plan, signature and
//             factors, and appends it to the queue of its group and channel.
//   Poll()    starts the operation's parts on the queue's idle Segments, in
//             order. A queue has a fixed number of segments: its window.
//   Segment   runs the schedule of its part: messages, syncs, kernels.
//   Settle()  counts a segment that is done; the segment is idle again.
//   Retire()  ends the operations at the front of a queue whose segments are
//             all done. Their `done` runs when ended() is polled.
//   FailAll() ends all of them, once the fabric has failed and given back every
//             buffer.
namespace gradientflow {
namespace {

// Steps of training use the same memory again within this time.
constexpr std::chrono::seconds kScratchKept(5);

std::uint64_t SyncsIn(const Schedule& schedule) {
  std::uint64_t syncs = 0;
  for (const auto& round : schedule.rounds) {
    for (const Action& action : round) {
      syncs += action.kind == Action::Kind::kSync;
    }
  }
  return syncs;
}

Cutting CuttingOf(const CallGroup& group, const ExecutorOptions& options) {
  Cutting cutting{options.segment_bytes, options.segments_in_flight};
  cutting.placed_bytes = PlacedBytes(group, cutting);
  return cutting;
}

}  // namespace

Executor::Executor(const ExecutorArgs& args, const CallGroup& all,
                   const CostModels& costs, const ExecutorOptions& options)
    : args_(args),
      options_(options),
      mailboxes_(args.arena),
      segment_args_{*args.fabric, args.arena,           *args.kernels, slabs_,
                    mailboxes_,   &Executor::OnMessage, this} {
  const Cutting cutting = CuttingOf(all, options);
  auto calls =
      std::make_unique<GroupCalls>(all, costs, cutting, options.algorithm);
  all_ = calls.get();
  groups_[all.id] = std::move(calls);
  placed_ = std::make_unique<PlacedCalls>(args.places, *args.fabric,
                                          all_->group, cutting);
}

Executor::~Executor() = default;

GroupCalls* Executor::Find(GroupId id) const {
  if (id == all_->group.id) return all_;
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.get();
}

const CallGroup* Executor::FindGroup(GroupId id) const {
  const GroupCalls* calls = Find(id);
  return calls == nullptr ? nullptr : &calls->group;
}

Status Executor::OpenGroup(GroupId id, const std::vector<int>& ranks) {
  if (Find(id) != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("group ", id, " is open already",
                         id == 0 ? ": it is that of all ranks" : ""));
  }
  Result<CallGroup> group = Subgroup(all_->group, id, ranks);
  if (!group.ok()) return group.status();
  groups_[id] = std::make_unique<GroupCalls>(group.value(), costs(),
                                             CuttingOf(group.value(), options_),
                                             options_.algorithm);
  return Status();
}

Status Executor::CloseGroup(GroupId id) {
  GroupCalls* calls = Find(id);
  if (calls == nullptr || calls == all_) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("group ", id, " is not open"));
  }
  GF_RETURN_IF_ERROR(calls->CheckIdle());
  for (const CallQueue& queue : calls->queues) {
    segments_.TakeBack(queue.segments());
  }
  schedules_.Forget(id);
  groups_.erase(id);
  args_.fabric->CloseGroup(id);
  return Status();
}

void Executor::UsePlaces(GroupId id) {
  GroupCalls* const calls = Find(id);
  calls->group.gradients_place = true;
  calls->planner.Forget();
}

void Executor::EndPlaces(GroupId id) {
  placed_->TakeBack();
  GroupCalls* const calls = Find(id);
  if (calls == nullptr) return;
  calls->group.gradients_place = false;
  calls->planner.Forget();
}

void Executor::SetCosts(const CostModels& costs) {
  schedules_.Clear();
  for (auto& [id, calls] : groups_) calls->planner.SetCosts(costs);
}

void Executor::Start(const CollectiveCall& call, Done done) {
  if (!args_.fabric->status().ok()) {
    ended_.Add(done, 0, args_.fabric->status());
    return;
  }
  GroupCalls* calls = Find(call.group);
  std::unique_ptr<Operation> operation;
  if (spare_.empty()) {
    operation = std::make_unique<Operation>();
  } else {
    operation = std::move(spare_.back());
    spare_.pop_back();
  }
  operation->call = call;
  operation->done = done;
  Prepare(calls, operation.get());
  CallQueue& queue = calls->queue(call.channel);
  segments_.FillUp(&queue.segments(),
                   static_cast<std::size_t>(options_.segments_in_flight));
  if (queue.empty()) busy_.push_back(&queue);
  queue.Push(std::move(operation));
  ++operations_;
}

void Executor::Prepare(GroupCalls* calls, Operation* operation) {
  Operation& op = *operation;
  op.group = &calls->group;
  op.plan = calls->planner.Plan(op.call);
  op.bytes_sent = &calls->bytes_sent(op.call.channel);
  op.window = placed_->CallBegins(calls->group, op.call.channel);
  op.signature = SignatureOf(op.call, op.plan);
  op.launched = op.finished = op.messages = 0;
  op.flags = 0;
  if (traces() || args_.recorder != nullptr) op.begin = args_.clock->Now();
  if (traces() && args_.writes != nullptr) {
    op.written_before = args_.writes->Count();
  }
  op.SetFactors();
  op.SetMemory();
}

// Where all messages are placed, the processor touches only what its rank
// reduces. In a two_level allreduce it also reads what ranks of its host have.
bool Executor::OwnParts(const CollectiveCall& call,
                        std::vector<Extent>* parts) {
  GroupCalls* calls = Find(call.group);
  const CallPlan plan = calls->planner.Plan(call);
  const bool placed =
      plan.algorithm != nullptr &&
      plan.algorithm->memory == CollectiveAlgorithm::Memory::kMustPlace;
  if (!placed || call.kind != CollectiveKind::kAllreduce) return false;
  for (std::uint64_t i = 0; i < plan.segments; ++i) {
    const Extent segment = plan.Part(i);
    const auto schedule =
        schedules_.Get(call, plan, calls->group, segment.count);
    for (const auto& round : schedule->rounds) {
      for (const Action& action : round) {
        // Sums of many ranks are made in batches, the last of which is final.
        const bool sums =
            action.kind == Action::Kind::kReduceMany && action.final;
        if (!sums || action.dst.count == 0) continue;
        parts->push_back({segment.begin + action.dst.offset, action.dst.count});
      }
    }
  }
  return true;
}

// A group of one rank exchanges nothing.
bool Executor::RunsAlone(const Operation& operation) const {
  return operation.call.kind == CollectiveKind::kAllreduce &&
         operation.group->size == 1;
}

void Executor::LaunchAlone(Operation* operation) {
  const std::vector<Extent> parts = TakePartsAlone(operation);
  if (RoundAlone(*operation, parts, *args_.kernels)) {
    operation->flags |= kFlagNonfinite;
  }
  for (const Extent& part : parts) {
    ++operation->finished;
    ++advances_;
    Feed* const feed = operation->call.feed;
    if (feed != nullptr) feed->Finished(part.begin, part.count);
  }
}

// Gives the next part of the calls, in order, to the first idle segment from
// number *from on, and returns that segment; null if there is no such segment
// or part. A part whose elements the feed has not brought yet holds up the
// parts behind it.
Segment* Executor::StartNext(CallQueue* queue, std::size_t* from) {
  while (Operation* const operation = queue->FirstToLaunch()) {
    if (!operation->NextPartIsThere()) return nullptr;
    if (RunsAlone(*operation)) {
      LaunchAlone(operation);
      if (operation->launched < operation->plan.segments) return nullptr;
      continue;
    }
    Segment* const segment = queue->IdleSegment(from);
    if (segment == nullptr) return nullptr;
    return StartPart(queue, operation, segment) ? segment : nullptr;
  }
  return nullptr;
}

// Gives the segment the operation's next part. Returns false, and begins
// nothing, if there are no slots for the syncs of the part, or if the slot for
// what is placed is not free yet.
bool Executor::StartPart(CallQueue* queue, Operation* operation,
                         Segment* segment) {
  const Extent part = operation->NextPart();
  std::shared_ptr<const Schedule> schedule = schedules_.Get(
      operation->call, operation->plan, *operation->group, part.count);
  const std::uint64_t syncs = SyncsIn(*schedule);
  if (syncs > 0 && !queue->HasSlotsFor(*schedule, syncs)) return false;
  Segment::Means means;
  if (schedule->placing > 0) {
    means.placed = placed_->Take(operation->window);
    if (means.placed == nullptr) return false;
  }
  const std::uint64_t index = operation->launched++;
  const bool narrow = TraitsOf(operation->call.wire).narrow_sums ||
                      TraitsOf(operation->call.dtype).narrow_sums ||
                      // Some other rank's buffer may be of such a type.
                      !operation->group->same_dtypes;
  if (schedule->multi_hop && operation->pre == 1.0F && narrow &&
      operation->op == kernels::ReduceOp::kSum) {
    std::swap(operation->pre, operation->post);
  }
  means.first_sync = queue->BeginSyncs(syncs);
  segment->Start(operation, index, part, std::move(schedule), means);
  ++running_;
  return true;
}

// Takes the result of a segment that has ended. Returns whether it has ended.
bool Executor::Settle(Segment* segment) {
  if (!segment->status().ok()) {
    args_.fabric->Fail(segment->status());
    return true;
  }
  if (!segment->done()) return false;
  Operation* operation = segment->operation();
  operation->flags |= segment->flags();
  ++operation->finished;
  ++advances_;
  const Extent part = {segment->begin(), segment->count()};
  segment->Reset();
  --running_;
  if (operation->call.feed != nullptr) {
    operation->call.feed->Finished(part.begin, part.count);
  }
  return true;
}

void Executor::OnMessage(void* self, std::uint64_t cookie, std::uint32_t flags,
                         const Status& status) {
  auto& executor = *static_cast<Executor*>(self);
  if (!status.ok()) return executor.args_.fabric->Fail(status);
  ++executor.advances_;
  Segment& segment = executor.segments_[cookie >> 32];
  if (segment.idle()) return;
  ++segment.operation()->messages;
  segment.OnMessage(static_cast<std::uint32_t>(cookie), flags);
  if (segment.awaits_messages()) return;
  segment.Advance();
  if (executor.Settle(&segment)) executor.Retire();
  // The call may have ended, and then nobody polls for a while.
  if (executor.args_.arena != nullptr) executor.args_.arena->RingMissed();
}

// A segment gets at most one part per call: it may end at once and be idle
// again, and then other segments have to be looked at first.
bool Executor::Poll() {
  if (args_.fabric->torn_down()) FailAll(args_.fabric->status());
  const std::uint64_t before = advances_;
  bool moved = false;
  for (CallQueue* queue : busy_) {
    std::size_t from = 0;
    while (Segment* segment = StartNext(queue, &from)) {
      segment->Advance(Looks());
      Settle(segment);
      moved = true;
    }
  }
  if (operations_ > 0) {
    if (running_ > 0) moved |= AdvanceLocal();
    Retire();
  }
  if (args_.fabric->departed() > 0 && running_ > 0) FailIfDeparted();
  if (args_.arena != nullptr) args_.arena->RingMissed();
  return ended_.Poll() || moved || advances_ != before;
}

// Goes on with the segments that wait for no message.
bool Executor::AdvanceLocal() {
  bool moved = false;
  for (CallQueue* queue : busy_) {
    for (Segment* segment : queue->segments()) {
      if (segment->idle() || segment->awaits_messages()) continue;
      moved |= segment->Advance(Looks());
      Settle(segment);
    }
  }
  return moved;
}

// Ends, in order, the calls whose segments are all done.
void Executor::Retire() {
  for (CallQueue* queue : busy_) {
    while (std::unique_ptr<Operation> finished = queue->TakeFinished()) {
      Finish(*finished);
      spare_.push_back(std::move(finished));
      --operations_;
    }
  }
  std::erase_if(busy_, [](const CallQueue* queue) { return queue->empty(); });
}

void Executor::Finish(const Operation& operation) {
  operation.ScaleResult();
  if (args_.recorder != nullptr) {
    args_.recorder->Record({"collective", Name(operation.call.kind),
                            operation.call.step, operation.sequence,
                            operation.call.count * operation.wire_bytes(),
                            operation.begin, args_.clock->Now()});
  }
  if (traces()) Trace(operation);
  args_.fabric->CallDone(operation.group->id,
                         static_cast<int>(operation.call.channel),
                         operation.sequence);
  placed_->CallDone(operation.window, operation.sequence);
  ended_.Add(operation.done, operation.flags, Status());
}

bool Executor::Busy(GroupId id, Channel channel) const {
  return !Find(id)->queue(channel).empty();
}

// All calls share the links, so the numbers include what was written for other
// calls meanwhile.
void Executor::Trace(const Operation& operation) const {
  const CallPlan& plan = operation.plan;
  std::string how = StrCat(plan.segments, " segments, ", Name(plan.algorithm),
                           " (", *plan.why, ")");
  if (args_.writes != nullptr) {
    how += StrCat(
        ", RDMA meanwhile: ",
        args_.writes->Count().Since(operation.written_before).ToString());
  }
  args_.logger->Log(LogLevel::kInfo,
                    TraceLine(operation.call, operation.sequence, how,
                              Seconds(args_.clock->Now() - operation.begin)));
}

void Executor::TrimScratch(Clock::Time now) {
  if (now - trimmed_at_ < kScratchKept) return;
  trimmed_at_ = now;
  slabs_.Trim();
  for (const auto& segment : segments_.all()) segment->Trim();
}

// The fabric finds the calls that wait for a message of a departed rank. This
// finds those that wait for such a rank at a kSync, or for what it is to place.
void Executor::FailIfDeparted() {
  std::vector<int> ranks;
  for (const CallQueue* queue : busy_) queue->AddAwaited(&ranks);
  for (int rank : ranks) args_.fabric->FailIfDeparted(rank);
}

// The fabric has given back every buffer, and nobody writes to this rank's
// memory.
void Executor::FailAll(const Status& why) {
  for (const auto& segment : segments_.all()) segment->PutsAreOver();
  // A peer may have failed in a later call, after it did its share of this one.
  AdvanceLocal();
  Retire();
  for (const auto& segment : segments_.all()) {
    if (segment->idle()) continue;
    segment->Retract();
    segment->Reset();
  }
  placed_->Abandon();
  running_ = 0;
  for (CallQueue* queue : busy_) queue->FailAll(why, &ended_);
  busy_.clear();
  operations_ = 0;
}

Clock::Time Executor::StandsSince(Clock::Time now) {
  Clock::Time since = now;
  for (CallQueue* queue : busy_) {
    since = std::min(since, queue->StandsSince(now));
  }
  return since;
}

std::vector<int> Executor::AwaitedRanks() const {
  std::vector<int> ranks = args_.fabric->AwaitedPeers();
  for (const CallQueue* queue : busy_) queue->AddAwaited(&ranks);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string Executor::OldestCall() const {
  std::string text;
  for (const CallQueue* queue : busy_) {
    const Operation& operation = queue->front();
    text += StrCat(text.empty() ? "" : " and in ",
                   Describe(operation.call, operation.sequence));
  }
  return text;
}

}  // namespace gradientflow
