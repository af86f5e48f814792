#include <algorithm>
#include <array>
#include <cstring>

#include "transports/collectives/segment.h"

// The local steps of a round.
namespace gradientflow {

bool Segment::RunLocal(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kSend:
    case Step::Kind::kRecv:
      break;  // Done with the messages.
    case Step::Kind::kReduce:
      if (step.dst.count > 0) RunReduce(step);
      break;
    case Step::Kind::kReduceMany:
      if (step.dst.count > 0) RunReduceMany(step);
      break;
    case Step::Kind::kCopy:
      if (step.dst.count > 0) RunCopy(step);
      break;
    case Step::Kind::kSync:
      return RunSync();
    case Step::Kind::kPullReduce:
      return RunPullReduce(step);
    case Step::Kind::kPush:
      RunPush(step);
      break;
  }
  return true;
}

void Segment::RunReduce(const Step& step) {
  const CollectiveCall& call = operation_->call;
  const std::byte* src = Scratch(step.src.offset);
  const float pre = step.raw ? operation_->pre : 1.0F;
  const float post = step.final ? operation_->post : 1.0F;
  data_.ForEachRun(
      Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        context_.kernels.accumulate(
            {run, dtype_, src + offset * operation_->wire_bytes(), call.wire, n,
             operation_->op, pre, post, nonfinite(step.final)},
            nullptr);
      });
}

void Segment::RunReduceMany(const Step& step) {
  if (step.sources + 1 > kernels::kMaxParties) return AccumulateAll(step);
  const CollectiveCall& call = operation_->call;
  const float scale = (step.raw ? operation_->pre : 1.0F) *
                      (step.final ? operation_->post : 1.0F);
  // Where all ranks sum the same, a buffer that is wider than the wire would
  // keep digits that others do not have.
  const DType round =
      step.final && !operation_->plan.same_dtypes ? call.wire : dtype_;
  const Elements& own_memory = MemoryOf(step.own);
  const std::size_t own_begin = Position(step.own);
  std::array<const void*, kernels::kMaxParties> sources;
  data_.ForEachRun(
      Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        for (int i = 0, landing = 0; i <= step.sources; ++i) {
          if (i == step.own_place) {
            // Own data has the runs of dst, and an input is one run.
            sources[i] = own_memory.Contiguous(own_begin + offset, n);
          } else {
            sources[i] = Scratch(
                step.src.offset +
                static_cast<std::size_t>(landing++) * step.src.count + offset);
          }
        }
        void* dst = run;
        context_.kernels.reduce_many(
            {sources.data(), step.sources + 1, step.own_place, call.wire, &dst,
             1, dtype_, round, n, operation_->op, scale, nonfinite(step.final)},
            nullptr);
      });
}

// More ranks than one kernel call takes: one after the other, in rank order
// but for this rank's own, which comes first.
void Segment::AccumulateAll(const Step& step) {
  const CollectiveCall& call = operation_->call;
  const Elements& own_memory = MemoryOf(step.own);
  const std::size_t own_begin = Position(step.own);
  const float scale = (step.raw ? operation_->pre : 1.0F) *
                      (step.final ? operation_->post : 1.0F);
  data_.ForEachRun(
      Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        const std::byte* own = own_memory.Contiguous(own_begin + offset, n);
        if (own != run) {
          std::memcpy(run, own, n * element_bytes());
        }
        for (int i = 0; i < step.sources; ++i) {
          const bool last = i + 1 == step.sources;
          const std::byte* src =
              Scratch(step.src.offset +
                      static_cast<std::size_t>(i) * step.src.count + offset);
          context_.kernels.accumulate(
              {run, dtype_, src, call.wire, n, operation_->op, 1.0F,
               last ? scale : 1.0F, nonfinite(last && step.final)},
              nullptr);
        }
      });
}

void Segment::RunCopy(const Step& step) {
  const Elements& from = MemoryOf(step.src);
  const std::size_t begin = Position(step.src);
  data_.ForEachRun(Position(step.dst), step.dst.count,
                   [&](std::byte* run, std::size_t n, std::size_t offset) {
                     const std::byte* src = from.Contiguous(begin + offset, n);
                     if (src != run) {
                       std::memmove(run, src, n * element_bytes());
                     }
                   });
}

}  // namespace gradientflow
