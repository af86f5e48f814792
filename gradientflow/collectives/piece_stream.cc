#include "gradientflow/collectives/piece_stream.h"

#include <utility>

#include "gradientflow/collectives/call_plan.h"
#include "kernels/kernels.h"

namespace gradientflow {
Result<std::unique_ptr<PieceStream>> PieceStream::Create(
    Device& device, int depth, std::size_t piece_bytes) {
  std::unique_ptr<PieceStream> pieces(
      new PieceStream(device, static_cast<std::size_t>(depth)));
  Result<DeviceMemory> packed = device.Allocate(piece_bytes);
  if (!packed.ok()) return packed.status();
  pieces->packed_ = std::move(packed).value();
  for (auto& event : pieces->events_) {
    Result<std::unique_ptr<Event>> made = device.NewEvent();
    if (!made.ok()) return made.status();
    event = std::move(made).value();
  }
  Result<std::unique_ptr<Stream>> stream = device.NewStream(/*urgent=*/true);
  if (!stream.ok()) return stream.status();
  pieces->stream_ = std::move(stream).value();
  return pieces;
}

// A piece that is contiguous and needs no conversion is copied directly. Any
// other is packed on the device first, in the dtype of the host's side.
Status PieceStream::CopyOut(const StagedPiece& piece) {
  if (piece.count == 0) return Status();
  const StagedSide& side = *piece.side;
  const std::size_t size = SizeOf(side.host_dtype);
  std::byte* host = side.host + piece.begin * size;
  if (side.device_dtype == side.host_dtype) {
    const std::byte* direct = side.device.Contiguous(piece.begin, piece.count);
    if (direct != nullptr) {
      return stream_->Copy(host, direct, piece.count * size);
    }
  }
  int error = 0;
  side.device.ForEachRun(
      piece.begin, piece.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        if (error != 0) return;
        error = device_.kernels().convert(
            {run, side.device_dtype, packed_.get() + offset * size,
             side.host_dtype, nullptr, n, 1.0F, nullptr},
            stream_->native());
      });
  GF_RETURN_IF_ERROR(device_.KernelStatus("convert", error));
  return stream_->Copy(host, packed_.get(), piece.count * size);
}

Status PieceStream::PackImage(const StagedJob& job, std::size_t begin,
                              std::size_t end) {
  const StagedSide& side = job.output;
  const std::size_t size = SizeOf(side.host_dtype);
  int error = 0;
  side.device.ForEachRun(
      begin, end - begin,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        if (error != 0) return;
        error = device_.kernels().convert(
            {run, side.device_dtype, job.image + (begin + offset) * size,
             side.host_dtype, nullptr, n, 1.0F, nullptr},
            stream_->native());
      });
  return device_.KernelStatus("convert", error);
}

Status PieceStream::ClearNonfinite(const StagedJob& job) {
  if (job.nonfinite == nullptr) return Status();
  return stream_->Fill(job.nonfinite, 0, sizeof(*job.nonfinite));
}

Status PieceStream::FetchNonfinite(const StagedJob& job) {
  if (job.nonfinite == nullptr) return Status();
  return stream_->Copy(job.nonfinite_host, job.nonfinite,
                       sizeof(*job.nonfinite));
}

Status PieceStream::CopyIn(const StagedPiece& piece, bool first, bool last) {
  if (first) {
    // A call that reads nothing on the device has not yet waited for the work
    // that uses the memory it is about to overwrite.
    GF_RETURN_IF_ERROR(stream_->Wait(*piece.job->gate));
    GF_RETURN_IF_ERROR(ClearNonfinite(*piece.job));
  }
  GF_RETURN_IF_ERROR(Unpack(piece));
  return last ? FetchNonfinite(*piece.job) : Status();
}

// The reverse of CopyOut() or PackImage(), and the place where a converted
// result is unscaled.
Status PieceStream::Unpack(const StagedPiece& piece) {
  const StagedSide& side = *piece.side;
  const std::size_t size = SizeOf(side.host_dtype);
  const std::byte* host = side.host + piece.begin * size;
  const bool in_image = piece.job->in_image(piece);
  if (side.device_dtype == side.host_dtype && !in_image) {
    std::byte* direct = side.device.Contiguous(piece.begin, piece.count);
    if (direct != nullptr) {
      return stream_->Copy(direct, host, piece.count * size);
    }
  }
  const std::byte* packed = packed_.get();
  if (in_image) {
    packed = piece.job->image + piece.begin * size;
  } else {
    GF_RETURN_IF_ERROR(stream_->Copy(packed_.get(), host, piece.count * size));
  }
  const bool converts = side.device_dtype != side.host_dtype;
  const float unscale = converts ? UnscaleOf(piece.job->call) : 1.0F;
  int error = 0;
  side.device.ForEachRun(
      piece.begin, piece.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        if (error != 0) return;
        error = device_.kernels().convert(
            {packed + offset * size, side.host_dtype, run, side.device_dtype,
             nullptr, n, unscale, piece.job->nonfinite},
            stream_->native());
      });
  return device_.KernelStatus("convert", error);
}

Status PieceStream::ReduceAlone(const StagedJob& job) {
  const CollectiveCall& call = job.call;
  const auto op = call.op == ReduceOp::kMean
                      ? kernels::ReduceOp::kSum
                      : static_cast<kernels::ReduceOp>(call.op);
  // Rounded in the same way as a result that travels.
  const bool gradients = IsGradientType(call.dtype);
  const DType wire = gradients ? call.wire : DType::kFloat32;
  const DType round = gradients ? call.wire : call.dtype;
  GF_RETURN_IF_ERROR(ClearNonfinite(job));
  int error = 0;
  job.output.device.ForEachRun(
      0, call.count, [&](std::byte* run, std::size_t n, std::size_t) {
        if (error != 0) return;
        const void* source = run;
        void* dest = run;
        error = device_.kernels().reduce_many(
            {&source, 1, -1, call.dtype, &dest, 1, call.dtype, round, n, op,
             call.scale, job.nonfinite, wire, UnscaleOf(call)},
            stream_->native());
      });
  GF_RETURN_IF_ERROR(device_.KernelStatus("reduce_many", error));
  return FetchNonfinite(job);
}

Status PieceStream::Close(const StagedPiece& piece) {
  const Status recorded = stream_->Record(events_[next_].get());
  next_ = (next_ + 1) % events_.size();
  under_way_.push_back({piece, recorded.ok()});
  return recorded;
}

// events_ is used as a ring; the oldest piece has the oldest event.
Result<bool> PieceStream::Done() {
  if (under_way_.empty()) return false;
  const std::size_t oldest =
      (next_ + events_.size() - under_way_.size()) % events_.size();
  bool& recorded = under_way_.front().recorded;
  if (!recorded) {
    // Without the event nothing tells when the work is done.
    GF_RETURN_IF_ERROR(stream_->Record(events_[oldest].get()));
    recorded = true;
  }
  return events_[oldest]->Query();
}

StagedPiece PieceStream::Pop() {
  const StagedPiece piece = under_way_.front().piece;
  under_way_.pop_front();
  return piece;
}

}  // namespace gradientflow
