#include "gradientflow/collectives/segment_data.h"

#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

void SegmentData::Start(Operation* operation, std::uint64_t index, Extent part,
                        std::shared_ptr<const Schedule> schedule,
                        PlacedSlot* placed) {
  operation_ = operation;
  schedule_ = std::move(schedule);
  placed_ = placed;
  index_ = index;
  begin_ = data_begin_ = part.begin;
  count_ = part.count;
  data_ = operation->data;
  dtype_ = operation->call.dtype;
  if (schedule_->scratch_elements > 0 && placed_ == nullptr) {
    scratch_ = args_.slabs.Take(schedule_->scratch_elements * wire_bytes());
    scratch_elements_ = Elements(scratch_.data(), wire_bytes());
  }
}

void SegmentData::Reset() {
  args_.slabs.Give(std::exchange(scratch_, Slabs::Slab()));
  args_.slabs.Give(std::exchange(image_, Slabs::Slab()));
  operation_ = nullptr;
  schedule_.reset();
  placed_ = nullptr;
  flags_ = nonfinite_ = 0;
  status_ = Status();
}

void SegmentData::MoveTo(std::byte* staged, DType dtype) {
  dtype_ = dtype;
  if (staged == nullptr) return;
  data_ = Elements(staged, element_bytes());
  data_begin_ = 0;
}

bool SegmentData::IsBlocked(Slice::Space space) const {
  const CallPlan& plan = operation_->plan;
  return space == Slice::Space::kInput ? plan.blocked_input : plan.blocked_data;
}

std::size_t SegmentData::PositionInCall(const Slice& slice) const {
  if (!IsBlocked(slice.space)) return begin_ + slice.offset;
  return slice.offset / count_ * operation_->plan.count + begin_ +
         slice.offset % count_;
}

std::size_t SegmentData::Position(const Slice& slice) const {
  if (slice.space == Slice::Space::kScratch) return slice.offset;
  const bool moved =
      slice.space == Slice::Space::kData && data_begin_ != begin_;
  return moved ? data_begin_ + slice.offset : PositionInCall(slice);
}

const Elements& SegmentData::MemoryOf(const Slice& slice) const {
  if (slice.space == Slice::Space::kScratch) return scratch_elements_;
  return slice.space == Slice::Space::kInput ? operation_->input : data_;
}

// Placed landings have headers between them.
std::byte* SegmentData::Scratch(std::size_t elements) const {
  if (placed_ == nullptr) return scratch_.data() + elements * wire_bytes();
  const std::size_t landing = schedule_->scratch_elements /
                              static_cast<std::size_t>(schedule_->placing - 1);
  return placed_->PayloadAt(static_cast<int>(elements / landing)) +
         elements % landing * wire_bytes();
}

std::byte* SegmentData::Image(const Slice& slice) {
  if (image_.empty()) image_ = args_.slabs.Take(count_ * wire_bytes());
  return image_.data() + slice.offset * wire_bytes();
}

void SegmentData::Pack(const Action& action, std::byte* wire) {
  const DType to = call().wire;
  const float scale = action.raw ? operation_->pre : 1.0F;
  const bool settle = action.settle && (converts() || scale != 1.0F);
  MemoryOf(action.src)
      .ForEachRun(Position(action.src), action.src.count,
                  [&](std::byte* run, std::size_t n, std::size_t offset) {
                    args_.kernels.convert(
                        {run, dtype_, wire + offset * wire_bytes(), to,
                         settle ? run : nullptr, n, scale,
                         nonfinite(action.settle && converts()),
                         action.last ? Unscale() : 1.0F},
                        nullptr);
                  });
}

void SegmentData::Unpack(const Slice& dst, const std::byte* wire) {
  const DType from = call().wire;
  data_.ForEachRun(Position(dst), dst.count,
                   [&](std::byte* run, std::size_t n, std::size_t offset) {
                     args_.kernels.convert(
                         {wire + offset * wire_bytes(), from, run, dtype_,
                          nullptr, n, Unscale(), nonfinite(converts())},
                         nullptr);
                   });
}

std::uint64_t SegmentData::Signature() const {
  return MixHash(MixHash(operation_->signature, operation_->sequence), index_);
}

Status SegmentData::AnotherCall(int rank) const {
  return Status(StatusCode::kInvalidArgument,
                StrCat("rank ", rank, " came to another call than rank ",
                       args_.fabric.rank(), ": ", Name(call().kind), " ",
                       operation_->sequence, " of ", call().count, " ",
                       Name(call().dtype), ", step ", call().step, " bucket ",
                       call().bucket,
                       "; kind, dtype, operation, count, step or place in the "
                       "pool differ"));
}

}  // namespace gradientflow
