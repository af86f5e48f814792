#include <algorithm>
#include <array>
#include <cstring>

#include "gradientflow/collectives/segment.h"

// The local steps of a round: those that run once its messages have ended.
namespace gradientflow {

bool Segment::RunLocal(const Step& step, int looks) {
  switch (step.kind) {
    case Step::Kind::kSend:
    case Step::Kind::kRecv:
      break;  // Not called for these.
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
      return RunSync(looks);
    case Step::Kind::kPull:
      return RunPull(step);
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
  MemoryOf(step.dst).ForEachRun(
      Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        args_.kernels.accumulate(
            {run, dtype_, src + offset * operation_->wire_bytes(), call.wire, n,
             operation_->op, pre, post, nonfinite(step.final)},
            nullptr);
      });
}

void Segment::RunReduceMany(const Step& step) {
  static_assert(kMaxReduceParties <= kernels::kMaxParties);
  const CollectiveCall& call = operation_->call;
  const float scale = (step.raw ? operation_->pre : 1.0F) *
                      (step.final ? operation_->post : 1.0F);
  // This rank's own contribution, and the result, are rounded as if they had
  // travelled. So the result does not depend on which rank owns a block, or on
  // whether one rank sums or all of them do. A partial sum is not a
  // contribution and stays unrounded.
  const DType wire = step.partial ? DType::kFloat32 : call.wire;
  const DType round = step.final ? call.wire : dtype_;
  const Elements& own_memory = MemoryOf(step.own);
  const std::size_t own_begin = Position(step.own);
  std::array<const void*, kernels::kMaxParties> sources;
  data_.ForEachRun(
      Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        for (int i = 0, landing = 0; i <= step.sources; ++i) {
          if (i == step.own_place) {
            // A contribution in the buffer has the same runs as dst, and an
            // input is a single run.
            sources[i] = own_memory.Contiguous(own_begin + offset, n);
          } else {
            sources[i] = Scratch(
                step.src.offset +
                static_cast<std::size_t>(landing++) * step.src.count + offset);
          }
        }
        void* dst = run;
        args_.kernels.reduce_many(
            {sources.data(), step.sources + 1, step.own_place, call.wire, &dst,
             1, dtype_, round, n, operation_->op, scale, nonfinite(step.final),
             wire, step.last ? Unscale() : 1.0F},
            nullptr);
      });
}

void Segment::RunCopy(const Step& step) {
  const Elements& from = MemoryOf(step.src);
  const std::size_t begin = Position(step.src);
  MemoryOf(step.dst).ForEachRun(
      Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        const std::byte* src = from.Contiguous(begin + offset, n);
        if (src != run) std::memmove(run, src, n * element_bytes());
      });
}

}  // namespace gradientflow
