#include <algorithm>
#include <array>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/staged.h"
#include "transports/wire.h"

// How the jobs of a StagedCollective move on, with every Poll():
//
//   AdmitJobs()  gives waiting jobs their staging memory
//   SendOut()    device -> staging memory, piece by piece
//   BeginJobs()  starts the inner call; a kFed one begins before all is copied
//   AwaitRemoteWrites()  what the network card has written is there
//   SendIn()     staging memory -> device, as the inner call finishes pieces
//   CloseJobs()  ends the jobs that are over
//
// LookAt() finds out which copies are done.
namespace gradientflow {
namespace {

using Way = StagedJob::Way;

}  // namespace

bool StagedCollective::Poll() {
  bool moved = ended_.Poll();
  if (!jobs_.empty() && !left_behind_) {
    moved |= LookAt(out_.get(), /*out=*/true);
    moved |= LookAt(in_.get(), /*out=*/false);
    if (!args_.fabric->status().ok()) Abandon(args_.fabric->status());
    moved |= AdmitJobs();
    moved |= SendOut();
    moved |= BeginJobs();
    AwaitRemoteWrites();
    moved |= SendIn();
    moved |= CloseJobs();
    LeaveBehindIfLate();
  }
  moved |= ended_.Poll();
  return moved;
}

// Staging memory goes to the calls of a channel in their order. The channels do
// not share it, because the plain calls that one rank waits for may be behind
// the gradients of another rank.
bool StagedCollective::AdmitJobs() {
  bool moved = false;
  std::array<bool, kChannels> full = {};
  for (const auto& job : jobs_) {
    bool& no_room = full[static_cast<std::size_t>(job->call.channel)];
    if (job->admitted || no_room || !job->status.ok()) continue;
    const Status status = Admit(job.get());
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
    std::erase_if(staged.ready_in_,
                  [&](const StagedPiece& piece) { return piece.job == job; });
  } else if (job->way == Way::kWhole) {
    job->FinishedAll();
  }
}

bool StagedCollective::SendOut() {
  bool moved = false;
  for (const auto& owned : jobs_) {
    StagedJob* job = owned.get();
    const bool alone = job->way == Way::kAlone;
    const std::size_t end = alone ? job->call.count : job->out_elements();
    while (!broken_ && !out_->full() && job->admitted && job->status.ok() &&
           job->sent_out < end) {
      Status status;
      if (job->sent_out == 0) status = out_->stream().Wait(*job->gate);
      const StagedPiece piece =
          alone ? StagedPiece{job, &job->output, 0, end, end} : job->NextOut();
      if (status.ok() && job->packs) {
        status = out_->PackImage(*job, job->sent_out, piece.end);
      }
      if (status.ok()) {
        status = alone ? out_->ReduceAlone(*job) : out_->CopyOut(piece);
      }
      job->sent_out = piece.end;
      ++job->on_device;
      const Status closed = out_->Close(piece);
      if (!closed.ok()) --job->on_device;
      if (status.ok()) status = closed;
      if (!status.ok()) Fail(job, "copying it out", status);
      moved = true;
    }
  }
  return moved;
}

bool StagedCollective::SendIn() {
  bool moved = false;
  while (!broken_ && !in_->full() && !ready_in_.empty()) {
    const StagedPiece piece = ready_in_.front();
    ready_in_.pop_front();
    StagedJob* job = piece.job;
    const bool first = job->sent_in++ == 0;
    const Status status =
        in_->CopyIn(piece, first, job->sent_in == job->in_pieces());
    ++job->on_device;
    const Status closed = in_->Close(piece);
    if (!closed.ok()) --job->on_device;
    if (!status.ok() || !closed.ok()) {
      Fail(job, "copying it in", status.ok() ? closed : status);
    }
    moved = true;
  }
  return moved;
}

// Takes note of the work that the device has done.
bool StagedCollective::LookAt(PieceStream* pieces, bool out) {
  bool moved = false;
  while (!pieces->empty()) {
    const Result<bool> done = pieces->Done();
    if (done.ok() && !done.value()) break;
    const StagedPiece piece = pieces->Pop();
    moved = true;
    --piece.job->on_device;
    if (!done.ok()) {
      Fail(piece.job, out ? "copying it out" : "copying it in", done.status());
    } else if (out) {
      piece.job->here = piece.end;
    } else {
      ++piece.job->in_place;
    }
  }
  return moved;
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
    if (job->staging != nullptr) {
      staging_[static_cast<std::size_t>(job->call.channel)].Give(job->staging);
    }
    GiveImage(job.get());
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
  broken_ = true;
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
  ready_in_.clear();
  for (const auto& job : jobs_) {
    if (job->status.ok()) job->status = why;
  }
}

// The device may never get done: its stream may wait for another library, which
// waits for a rank that is gone. After a while the jobs end without it.
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
