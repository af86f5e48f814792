#include "gradientflow/collectives/staged_copies.h"

#include <utility>

namespace gradientflow {

using Way = StagedJob::Way;

Result<std::unique_ptr<StagedCopies>> StagedCopies::Create(
    Device& device, int pieces, std::size_t piece_bytes, OnFailed on_failed) {
  std::unique_ptr<StagedCopies> copies(new StagedCopies(std::move(on_failed)));
  for (std::unique_ptr<PieceStream>* stream : {&copies->out_, &copies->in_}) {
    Result<std::unique_ptr<PieceStream>> made =
        PieceStream::Create(device, pieces, piece_bytes);
    if (!made.ok()) return made.status();
    *stream = std::move(made).value();
  }
  return copies;
}

bool StagedCopies::Look() {
  const bool out = LookAt(out_.get(), /*out=*/true);
  return LookAt(in_.get(), /*out=*/false) || out;
}

void StagedCopies::Forget(const StagedJob* job) {
  std::erase_if(ready_in_,
                [job](const StagedPiece& piece) { return piece.job == job; });
}

bool StagedCopies::SendOut(const Jobs& jobs) {
  bool moved = false;
  for (const auto& owned : jobs) {
    StagedJob* job = owned.get();
    const bool alone = job->way == Way::kAlone;
    const std::size_t end = alone ? job->call.count : job->out_elements();
    while (!stopped_ && !out_->full() && job->admitted && job->status.ok() &&
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
      if (status.ok()) status = closed;
      if (!status.ok()) on_failed_(job, "copying it out", status);
      moved = true;
    }
  }
  return moved;
}

bool StagedCopies::SendIn() {
  bool moved = false;
  while (!stopped_ && !in_->full() && !ready_in_.empty()) {
    const StagedPiece piece = ready_in_.front();
    ready_in_.pop_front();
    StagedJob* job = piece.job;
    const bool first = job->sent_in++ == 0;
    const Status status =
        in_->CopyIn(piece, first, job->sent_in == job->in_pieces());
    ++job->on_device;
    const Status closed = in_->Close(piece);
    if (!status.ok() || !closed.ok()) {
      on_failed_(job, "copying it in", status.ok() ? closed : status);
    }
    moved = true;
  }
  return moved;
}

bool StagedCopies::LookAt(PieceStream* pieces, bool out) {
  bool moved = false;
  while (!pieces->empty()) {
    const Result<bool> done = pieces->Done();
    if (done.ok() && !done.value()) break;
    if (!done.ok() && !stopped_) {
      on_failed_(pieces->oldest().job, out ? "copying it out" : "copying it in",
                 done.status());
    }
    // The device may still use the memory of the piece: it is asked again.
    if (!done.ok() && !MeansLost(done.status())) break;
    const StagedPiece piece = pieces->Pop();
    moved = true;
    --piece.job->on_device;
    if (!done.ok()) continue;
    if (out) {
      piece.job->here = piece.end;
    } else {
      ++piece.job->in_place;
    }
  }
  return moved;
}

}  // namespace gradientflow
