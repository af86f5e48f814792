#include "gradientflow/collectives/staged.h"

#include <algorithm>
#include <array>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "transports/wire.h"

// A call that enters becomes a StagedJob:
//
//   Enter()    checks the call; a call on host memory goes straight to the
//              inner collective unless it has to wait for its turn
//   Prepare()  decides the job's way, and records on the caller's stream when
//              its buffers may be read
//
// Every Poll() moves the jobs on:
//
//   AdmitJobs()  gives waiting jobs their memory, once there is room
//   SendOut()    device -> staging memory, piece by piece (StagedCopies)
//   BeginJobs()  starts the inner call; a kFed one begins before all is copied
//   AwaitRemoteWrites()  what the network card has written is there
//   SendIn()     staging memory -> device, as the inner call finishes pieces
//   CloseJobs()  ends the jobs that are over
namespace gradientflow {
namespace {

using Way = StagedJob::Way;

constexpr std::size_t kLeastPiece = 4096;
}  // namespace

StagedCollective::StagedCollective(const StagedArgs& args,
                                   const StagedOptions& options)
    : args_(args),
      options_(options),
      memory_({args.device, args.arena, args.places, args.logger,
               options.staging_bytes}) {}

StagedCollective::~StagedCollective() = default;

Result<std::unique_ptr<StagedCollective>> StagedCollective::Create(
    const StagedArgs& args, const StagedOptions& options) {
  StagedOptions adapted = options;
  adapted.piece_bytes = std::max(options.piece_bytes, kLeastPiece);
  adapted.pieces_in_flight = std::max(options.pieces_in_flight, 1);
  std::unique_ptr<StagedCollective> staged(new StagedCollective(args, adapted));
  GF_RETURN_IF_ERROR(staged->Build());
  return staged;
}

Status StagedCollective::Build() {
  Result<std::unique_ptr<StagedCopies>> copies = StagedCopies::Create(
      *args_.device, options_.pieces_in_flight, options_.piece_bytes,
      [this](StagedJob* job, const char* doing, const Status& why) {
        Fail(job, doing, why);
      });
  if (!copies.ok()) return copies.status();
  copies_ = std::move(copies).value();
  Result<std::unique_ptr<Stream>> gate =
      args_.device->NewStream(/*urgent=*/true);
  if (!gate.ok()) return gate.status();
  gate_ = std::move(gate).value();
  return Status();
}

bool StagedCollective::Busy(GroupId group, Channel channel) const {
  return args_.inner->Busy(group, channel) ||
         std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
           return job->call.group == group && job->call.channel == channel;
         });
}

std::size_t StagedCollective::in_flight() const {
  return jobs_.size() + ended_.size() + args_.inner->in_flight() - in_inner_;
}

std::string StagedCollective::OldestCall() const {
  std::string text = args_.inner->OldestCall();
  if (!text.empty() || jobs_.empty()) return text;
  const CollectiveCall& call = jobs_.front()->call;
  return StrCat(Name(call.kind), " of ", call.count, " ", Name(call.dtype),
                ", step ", call.step, " bucket ", call.bucket, ", on its way ",
                jobs_.front()->begun ? "to " : "from ",
                args_.device->description());
}

bool StagedCollective::OnDevice(const void* buffer,
                                std::size_t elements) const {
  return elements > 0 && args_.device->Owns(buffer);
}

void StagedCollective::Start(const CollectiveCall& call, Done done) {
  const Status status = Enter(call, done);
  if (!status.ok()) ended_.Add(done, 0, status);
}

Status StagedCollective::Enter(const CollectiveCall& call, Done done) {
  GF_RETURN_IF_ERROR(args_.fabric->status());
  const CallBuffers buffers = BuffersOf(call, args_.group);
  const bool staged = OnDevice(call.input, buffers.input) ||
                      OnDevice(call.output, buffers.output);
  if (staged && call.feed != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat(Name(call.kind),
                         ": a feed is for the host's memory, "
                         "not for that of ",
                         args_.device->description()));
  }
  const bool must_wait =
      std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& job) {
        return !job->begun && job->call.channel == call.channel;
      });
  if (!staged && !must_wait) {
    args_.inner->Start(call, done);
    return Status();
  }
  Result<std::unique_ptr<StagedJob>> made = NewJob();
  if (!made.ok()) {
    // The call cannot run on this rank. The other ranks do not know that and
    // would wait for it, so the whole job fails.
    args_.fabric->Fail(made.status());
    return made.status();
  }
  jobs_.push_back(std::move(made).value());
  StagedJob* job = jobs_.back().get();
  job->call = call;
  job->done = done;
  if (!staged) {
    job->admitted = true;
    return Status();
  }
  Status prepared = call.before(stream());
  if (prepared.ok()) prepared = Prepare(job);
  if (!prepared.ok()) Fail(job, "preparing it", prepared);
  return Status();
}

Result<std::unique_ptr<StagedJob>> StagedCollective::NewJob() {
  if (!spare_.empty()) {
    std::unique_ptr<StagedJob> job = std::move(spare_.back());
    spare_.pop_back();
    return job;
  }
  Result<std::unique_ptr<Event>> gate = args_.device->NewEvent();
  if (!gate.ok()) return gate.status();
  auto job = std::make_unique<StagedJob>();
  job->gate = std::move(gate).value();
  job->ready = copies_->ready_in();
  job->number = jobs_made_++;
  return job;
}

StagedSide StagedCollective::SideOf(const StagedJob& job, bool of_input) const {
  const CollectiveCall& call = job.call;
  const CallBuffers buffers = BuffersOf(call, args_.group);
  StagedSide side;
  const void* memory = of_input ? call.input : call.output;
  const std::size_t count = of_input ? buffers.input : buffers.output;
  if (!OnDevice(memory, count)) return side;
  // Inputs are only read.
  auto* data = static_cast<std::byte*>(const_cast<void*>(memory));
  const bool gaps = !of_input && !call.extents.empty();
  side.device = gaps ? Elements(data, SizeOf(call.dtype), &call.extents,
                                &job.extent_starts)
                     : Elements(data, SizeOf(call.dtype));
  side.device_dtype = call.dtype;
  side.host_dtype = call.wire;
  side.count = count;
  side.piece_elements = options_.piece_bytes / SizeOf(call.wire);
  return side;
}

Status StagedCollective::Prepare(StagedJob* job) {
  const CollectiveCall& call = job->call;
  const bool allreduce = call.kind == CollectiveKind::kAllreduce;
  const bool root = args_.group.rank == call.root;
  std::size_t before = 0;
  for (const Extent& extent : call.extents) {
    job->extent_starts.push_back(before);
    before += extent.count;
  }
  job->input = SideOf(*job, /*of_input=*/true);
  job->output = SideOf(*job, /*of_input=*/false);
  if (allreduce && args_.group.size == 1) {
    job->way = Way::kAlone;
  } else {
    const bool broadcast = call.kind == CollectiveKind::kBroadcast;
    const bool fed = allreduce && IsGradientType(call.dtype);
    job->way = fed ? Way::kFed : Way::kWhole;
    job->reads_output = allreduce || (broadcast && root);
    job->writes_output = !broadcast || !root;
    job->direct = GoesDirect(job);
    job->finished.assign(job->direct ? 0 : job->in_pieces(), 0);
  }
  return gate_->Record(job->gate.get());
}

// Returns whether the network card takes the output from the device's memory.
// If so, also finds out which parts the host adds up itself.
bool StagedCollective::GoesDirect(StagedJob* job) {
  const CollectiveCall& call = job->call;
  const StagedSide& output = job->output;
  if (args_.places == nullptr || job->way != Way::kFed) return false;
  if (output.count == 0) return false;
  const std::byte* const data = output.device.Contiguous(0, output.count);
  job->packs = call.dtype != call.wire || data == nullptr ||
               !args_.places->Reaches(data, output.host_bytes());
  if ((job->packs && !memory_.HasImages(call.channel)) ||
      !args_.inner->OwnParts(call, &job->own_parts)) {
    job->packs = false;
    return false;
  }
  job->wire = output;
  return true;
}

CollectiveCall StagedCollective::InnerCall(StagedJob* job) const {
  CollectiveCall inner = job->call;
  if (job->input.count > 0) inner.input = job->input.host;
  if (job->output.count > 0) {
    inner.output = job->output.host;
    // The copy back converts, so it also unscales.
    if (inner.dtype != inner.wire) inner.keep_scaled = true;
    inner.dtype = inner.wire;
    if (inner.place == 0) inner.place = HashOf(inner.extents);
    inner.extents.clear();
  }
  if (job->way == Way::kFed) inner.feed = job;
  if (job->direct) {
    inner.direct = job->wire.device.Contiguous(0, job->wire.count);
  }
  return inner;
}

bool StagedCollective::Poll() {
  bool moved = ended_.Poll();
  if (!jobs_.empty() && !left_behind_) {
    moved |= copies_->Look();
    if (!args_.fabric->status().ok()) Abandon(args_.fabric->status());
    moved |= AdmitJobs();
    moved |= copies_->SendOut(jobs_);
    moved |= BeginJobs();
    AwaitRemoteWrites();
    moved |= copies_->SendIn();
    moved |= CloseJobs();
    LeaveBehindIfLate();
  }
  moved |= ended_.Poll();
  return moved;
}

// Memory goes to the calls of a channel in their order.
bool StagedCollective::AdmitJobs() {
  bool moved = false;
  std::array<bool, kChannels> full = {};
  for (const auto& job : jobs_) {
    bool& no_room = full[static_cast<std::size_t>(job->call.channel)];
    if (job->admitted || no_room || !job->status.ok()) continue;
    const Status status = memory_.Admit(job.get());
    if (!status.ok()) Fail(job.get(), "staging it", status);
    no_room = !job->admitted;
    moved |= job->admitted;
  }
  return moved;
}

// Starts the inner calls of the jobs whose turn it is. A kWhole job needs all
// of its elements first, and holds up the jobs of its channel behind it.
bool StagedCollective::BeginJobs() {
  bool moved = false;
  std::array<bool, kChannels> held = {};
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    StagedJob* job = jobs_[i].get();
    bool& waits = held[static_cast<std::size_t>(job->call.channel)];
    if (job->begun || waits) continue;
    const bool ready = !job->status.ok() ||
                       (job->admitted && (job->way != Way::kWhole ||
                                          job->here == job->out_elements()));
    waits = !ready;
    if (!ready) continue;
    job->begun = moved = true;
    if (!job->status.ok() || job->way == Way::kAlone) {
      job->inner_done = true;
    } else if (job->way == Way::kHost) {
      job->inner_done = true;
      args_.inner->Start(job->call, std::exchange(job->done, {}));
    } else {
      ++in_inner_;
      args_.inner->Start(
          InnerCall(job),
          {&StagedCollective::OnInnerDone, this,
           static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(job))});
    }
  }
  return moved;
}

void StagedCollective::OnInnerDone(void* self, std::uint64_t cookie,
                                   std::uint32_t flags, const Status& status) {
  auto& staged = *static_cast<StagedCollective*>(self);
  auto* job = reinterpret_cast<StagedJob*>(cookie);
  --staged.in_inner_;
  job->inner_done = true;
  job->flags |= flags;
  if (!job->status.ok()) return;
  job->status = status;
  if (!status.ok()) {
    staged.copies_->Forget(job);
  } else if (job->way == Way::kWhole) {
    job->FinishedAll();
  }
}

bool StagedCollective::IsOver(const StagedJob& job) const {
  if (!job.begun || !job.inner_done || job.on_device > 0) return false;
  if (!job.status.ok() || job.way == Way::kHost) return true;
  if (job.way == Way::kAlone) return job.here == job.call.count;
  return job.in_place == job.in_pieces();
}

// The card has written sums to the device's memory, and kernels are about to
// read them: those of whoever gets the call back, or those that unpack an
// image. All calls that have come so far share one wait.
void StagedCollective::AwaitRemoteWrites() {
  StagedJob* any = nullptr;
  const auto waits = [&](const StagedJob& job) {
    if (!job.direct || !job.status.ok()) return false;
    return job.packs ? job.inner_done && !job.unpacking : IsOver(job);
  };
  for (const auto& job : jobs_) {
    if (waits(*job)) any = job.get();
  }
  if (any == nullptr) return;
  const Status flushed = args_.device->FlushRemoteWrites();
  if (!flushed.ok()) {
    return Fail(any, "awaiting what RDMA wrote to it", flushed);
  }
  for (const auto& job : jobs_) {
    if (waits(*job) && job->packs) job->UnpackAll();
  }
}

bool StagedCollective::CloseJobs() {
  bool moved = false;
  for (auto& job : jobs_) {
    if (!IsOver(*job)) continue;
    if (job->status.ok() && job->nonfinite_host != nullptr &&
        *job->nonfinite_host != 0) {
      job->flags |= kFlagNonfinite;
    }
    memory_.TakeBack(job.get());
    if (job->done.run != nullptr) {
      ended_.Add(job->done, job->status.ok() ? job->flags : 0, job->status);
    }
    job->Reset();
    spare_.push_back(std::move(job));
    moved = true;
  }
  if (moved) std::erase(jobs_, nullptr);
  return moved;
}

// A failure on this rank's device ends the job on all ranks, since the others
// wait for this call.
void StagedCollective::Fail(StagedJob* job, const char* doing,
                            const Status& why) {
  copies_->Stop();
  const CollectiveCall& call = job->call;
  const Status status(
      why.code(),
      StrCat("rank ", args_.group.rank, ", ", args_.device->description(), ": ",
             Name(call.kind), ", step ", call.step, " bucket ", call.bucket,
             ", ", doing, ": ", why.message()));
  if (job->status.ok()) job->status = status;
  args_.fabric->Fail(status);
  Abandon(args_.fabric->status());
}

void StagedCollective::Abandon(const Status& why) {
  if (!abandoned_at_) abandoned_at_ = args_.clock->Now();
  copies_->ForgetAll();
  for (const auto& job : jobs_) {
    if (job->status.ok()) job->status = why;
  }
}

// The device may never finish, because its stream may wait for another library,
// which waits for a rank that is gone. After a while the jobs end without it.
void StagedCollective::LeaveBehindIfLate() {
  if (jobs_.empty() || !abandoned_at_) return;
  const bool only_device = std::all_of(
      jobs_.begin(), jobs_.end(),
      [](const auto& job) { return job->begun && job->inner_done; });
  const double late = Seconds(args_.clock->Now() - *abandoned_at_);
  if (!only_device || late < options_.abandon_seconds) return;
  left_behind_ = true;
  for (const auto& job : jobs_) {
    if (job->done.run == nullptr) continue;
    ended_.Add(
        std::exchange(job->done, {}), 0,
        Status(job->status.code(),
               StrCat(job->status.message(), "; ", args_.device->description(),
                      " was not done with the call's buffers after ", late,
                      " s")));
  }
  left_.swap(jobs_);
}

}  // namespace gradientflow
