#include "gradientflow/collectives/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/alone.h"

// How a call gets through the executor:
//
//   Start()   makes the call an Operation, with its plan, signature and
//             factors, and appends it to the Queue of its group and channel.
//   Poll()    starts the operation's parts on the queue's idle Segments, in
//             order. A queue has a fixed number of segments: its window.
//   Segment   runs the schedule of its part: messages, syncs, kernels.
//   Settle()  counts a segment that is done; the segment is idle again.
//   Retire()  ends the operations at the front of a queue whose segments are
//             all done. Their `done` runs when ended() is polled.
//
// executor_life.cc has whom calls wait for, and how they fail.
namespace gradientflow {
namespace {

constexpr std::size_t kSchedulesKept = 64;
// Steps of training use the same memory again within this time.
constexpr std::chrono::seconds kScratchKept(5);

std::uint64_t SyncsIn(const Schedule& schedule) {
  std::uint64_t syncs = 0;
  for (const auto& round : schedule.rounds) {
    for (const Step& step : round) syncs += step.kind == Step::Kind::kSync;
  }
  return syncs;
}

// Slots have one layout, so either all ranks place messages on each other or
// the columns between hosts do.
PlacedLayout LayoutOf(const CallGroup& all, const ExecutorOptions& options) {
  if (all.all_place) {
    return PlacedLayoutFor(all.size, options.segment_bytes,
                           options.segments_in_flight);
  }
  return PlacedLayoutBetween(HostMap(all.size, all.topology).hosts(), all.size,
                             options.segment_bytes, options.segments_in_flight);
}

Group PlacingGroup(const CallGroup& all) {
  if (all.all_place) return AllRanks(all.rank, all.size);
  const auto hosts = RanksOfHosts(all.topology);
  return ColumnOf(PlaceOf(all.rank, hosts), hosts);
}

Cutting CuttingOf(const CallGroup& group, const ExecutorOptions& options) {
  Cutting cutting{options.segment_bytes, options.segments_in_flight};
  if (group.hosts_place) {
    cutting.placed_bytes = LayoutOf(group, options).part_bytes;
  }
  return cutting;
}

}  // namespace

Executor::GroupCalls::GroupCalls(const CallGroup& of, const CostModels& costs,
                                 const ExecutorOptions& options)
    : group(of),
      planner(of, costs, CuttingOf(of, options), options.algorithm) {}

Executor::Executor(const ExecutorArgs& args, const CallGroup& all,
                   const CostModels& costs, const ExecutorOptions& options)
    : args_(args),
      options_(options),
      mailboxes_(args.arena),
      segment_args_{*args.fabric, args.arena,           *args.kernels, slabs_,
                    mailboxes_,   &Executor::OnMessage, this} {
  if (args.places != nullptr && (all.all_place || all.hosts_place)) {
    placed_ = std::make_unique<PlacedSlots>(
        *args.places, *args.fabric, LayoutOf(all, options), PlacingGroup(all));
  }
  auto calls = std::make_unique<GroupCalls>(all, costs, options);
  all_ = calls.get();
  groups_[all.id] = std::move(calls);
}

Executor::~Executor() = default;

Executor::GroupCalls* Executor::Find(GroupId id) const {
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
  groups_[id] = std::make_unique<GroupCalls>(group.value(), costs(), options_);
  return Status();
}

Status Executor::CloseGroup(GroupId id) {
  GroupCalls* calls = Find(id);
  if (calls == nullptr || calls == all_) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("group ", id, " is not open"));
  }
  for (const Queue& queue : calls->queues) {
    if (queue.operations.empty()) continue;
    return Status(
        StatusCode::kFailedPrecondition,
        StrCat("group ", id, " is closed with ", queue.operations.size(),
               " calls in flight, ", Name(queue.operations.front()->call.kind),
               " #", queue.operations.front()->sequence, " first"));
  }
  for (Queue& queue : calls->queues) {
    free_segments_.insert(free_segments_.end(), queue.segments.begin(),
                          queue.segments.end());
  }
  std::erase_if(schedules_, [&](const auto& entry) {
    return std::get<GroupId>(entry.first) == id;
  });
  groups_.erase(id);
  args_.fabric->CloseGroup(id);
  return Status();
}

void Executor::SetCosts(const CostModels& costs) {
  schedules_.clear();
  for (auto& [id, calls] : groups_) calls->planner.SetCosts(costs);
}

void Executor::TakeSegments(Queue* queue) {
  while (queue->segments.size() <
         static_cast<std::size_t>(options_.segments_in_flight)) {
    if (free_segments_.empty()) {
      segments_.push_back(std::make_unique<Segment>(
          segment_args_, static_cast<std::uint32_t>(segments_.size())));
      free_segments_.push_back(segments_.back().get());
    }
    queue->segments.push_back(free_segments_.back());
    free_segments_.pop_back();
  }
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
  Queue& queue = calls->queues[static_cast<std::size_t>(call.channel)];
  if (queue.segments.empty()) TakeSegments(&queue);
  if (queue.operations.empty()) busy_.push_back(&queue);
  queue.operations.push_back(std::move(operation));
  ++operations_;
}

void Executor::Prepare(GroupCalls* calls, Operation* operation) {
  Operation& op = *operation;
  op.group = &calls->group;
  op.plan = calls->planner.Plan(op.call);
  op.sequence =
      calls->queues[static_cast<std::size_t>(op.call.channel)].next_sequence++;
  op.bytes_sent = &calls->bytes_sent[static_cast<std::size_t>(op.call.channel)];
  op.signature = SignatureOf(op.call, op.plan, calls->group);
  op.launched = op.finished = op.messages = 0;
  op.flags = 0;
  op.begin = args_.clock->Now();
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
    const auto schedule = ScheduleOf(call, plan, calls->group, segment.count);
    for (const auto& round : schedule->rounds) {
      for (const Step& step : round) {
        // Sums of many ranks are made in batches, the last of which is final.
        const bool sums = step.kind == Step::Kind::kReduceMany && step.final;
        if (!sums || step.dst.count == 0) continue;
        parts->push_back({segment.begin + step.dst.offset, step.dst.count});
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

std::shared_ptr<const Schedule> Executor::ScheduleOf(const CollectiveCall& call,
                                                     const CallPlan& plan,
                                                     const CallGroup& group,
                                                     std::size_t count) {
  const bool by_counts = !call.send_counts.empty() || !call.recv_counts.empty();
  const ScheduleKey key{call.group, plan.algorithm, call.root, count,
                        SizeOf(call.wire)};
  if (!by_counts) {
    const auto found = schedules_.find(key);
    if (found != schedules_.end()) return found->second;
  }
  auto schedule =
      std::make_shared<const Schedule>(ScheduleFor(call, plan, group, count));
  if (!by_counts) {
    if (schedules_.size() >= kSchedulesKept) schedules_.clear();
    schedules_.emplace(key, schedule);
  }
  return schedule;
}

// Gives the first idle segment from number *from on the next part of the calls,
// in order, and returns it; null if there is no such segment or part. A part
// that its feed has not brought yet holds up the parts behind it.
Segment* Executor::StartNext(Queue* queue, std::size_t* from) {
  for (auto& owned : queue->operations) {
    Operation* operation = owned.get();
    while (operation->launched < operation->plan.segments) {
      if (!operation->NextPartIsThere()) return nullptr;
      if (RunsAlone(*operation)) {
        LaunchAlone(operation);
        if (operation->launched < operation->plan.segments) return nullptr;
        continue;
      }
      std::size_t& i = *from;
      while (i < queue->segments.size() && !queue->segments[i]->idle()) ++i;
      if (i == queue->segments.size()) return nullptr;
      Segment* segment = queue->segments[i++];
      return StartPart(queue, operation, segment) ? segment : nullptr;
    }
  }
  return nullptr;
}

// Whether this rank may begin `syncs` more syncs without writing to a slot that
// another rank has yet to read. A peer begins no sync more than a window past
// its own oldest sync, so this rank's oldest is at most a window past that of
// the peer. This rank goes at most one more window further, and two windows are
// all the slots of a channel. There are fewer mailboxes than slots, so the
// window is smaller while it includes a sync with mail.
bool Executor::HasSlotsFor(const Queue& queue, const Schedule& schedule,
                           std::uint64_t syncs) {
  constexpr std::uint64_t kWindow = kSyncSlots / kChannels / 2;
  bool mailed = schedule.mailed;
  std::uint64_t oldest = queue.next_sync;
  for (const Segment* segment : queue.segments) {
    if (segment->idle()) continue;
    mailed |= segment->mailed();
    oldest = std::min(oldest, segment->next_sync());
  }
  return queue.next_sync + syncs - oldest <=
         (mailed ? Mailboxes::kBoxes / 2 : kWindow);
}

// Gives the segment the operation's next part. Returns false, and begins
// nothing, if there are no slots for the syncs of the part, or if the slot for
// what is placed is not free yet.
bool Executor::StartPart(Queue* queue, Operation* operation, Segment* segment) {
  const Extent part = operation->NextPart();
  std::shared_ptr<const Schedule> schedule = ScheduleOf(
      operation->call, operation->plan, *operation->group, part.count);
  const std::uint64_t syncs = SyncsIn(*schedule);
  if (syncs > 0 && !HasSlotsFor(*queue, *schedule, syncs)) return false;
  Segment::Means means;
  if (schedule->placing > 0) {
    means.placed = placed_->Take(operation->call.channel);
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
  means.first_sync = queue->next_sync;
  queue->next_sync += syncs;
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
  Segment& segment = *executor.segments_[cookie >> 32];
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
  for (Queue* queue : busy_) {
    std::size_t from = 0;
    while (Segment* segment = StartNext(queue, &from)) {
      segment->Advance(Looks());
      Settle(segment);
      moved = true;
    }
  }
  if (operations_ > 0) {
    moved |= AdvanceLocal();
    Retire();
  }
  if (args_.fabric->departed() > 0 && running_ > 0) FailIfDeparted();
  if (args_.arena != nullptr) args_.arena->RingMissed();
  return ended_.Poll() || moved || advances_ != before;
}

// Goes on with the segments that wait for no message.
bool Executor::AdvanceLocal() {
  bool moved = false;
  for (Queue* queue : busy_) {
    for (Segment* segment : queue->segments) {
      if (segment->idle() || segment->awaits_messages()) continue;
      moved |= segment->Advance(Looks());
      Settle(segment);
    }
  }
  return moved;
}

// Ends, in order, the calls whose segments are all done.
void Executor::Retire() {
  for (Queue* queue : busy_) {
    while (!queue->operations.empty()) {
      std::unique_ptr<Operation>& front = queue->operations.front();
      if (front->finished < front->plan.segments) break;
      Finish(*front);
      spare_.push_back(std::move(front));
      queue->operations.pop_front();
      --operations_;
    }
  }
  std::erase_if(busy_,
                [](const Queue* queue) { return queue->operations.empty(); });
}

// Scales a float64 result, whose factor the kernels do not take, and reports
// it.
void Executor::Finish(const Operation& operation) {
  if (operation.last != 1.0) {
    operation.data.ForEachRun(
        0, operation.call.count,
        [&](std::byte* run, std::size_t n, std::size_t) {
          for (std::size_t i = 0; i < n; ++i) {
            double value;
            std::memcpy(&value, run + i * sizeof(value), sizeof(value));
            value *= operation.last;
            std::memcpy(run + i * sizeof(value), &value, sizeof(value));
          }
        });
  }
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
  if (placed_ != nullptr && operation.group == &all_->group) {
    placed_->CallDone(operation.call.channel, operation.sequence);
  }
  ended_.Add(operation.done, operation.flags, Status());
}

bool Executor::Busy(GroupId id, Channel channel) const {
  return !Find(id)
              ->queues[static_cast<std::size_t>(channel)]
              .operations.empty();
}

// Links are those of all calls, so what is written for others meanwhile is in
// the numbers, too.
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
  for (auto& segment : segments_) segment->Trim();
}

std::size_t Executor::free_scratch_bytes() const {
  std::size_t bytes = slabs_.free_bytes();
  for (const auto& segment : segments_) bytes += segment->kept_bytes();
  return bytes;
}

}  // namespace gradientflow
