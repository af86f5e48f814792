#include "gradientflow/collectives/local_steps.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace gradientflow {
namespace {

using kernels::CpuKernelTable;

void Reduce(const Step& step, const CpuKernelTable& kernels,
            SegmentData* data) {
  const Operation& operation = *data->operation();
  const std::byte* src = data->Scratch(step.src.offset);
  const float pre = step.raw ? operation.pre : 1.0F;
  const float post = step.final ? operation.post : 1.0F;
  data->MemoryOf(step.dst).ForEachRun(
      data->Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        kernels.accumulate(
            {run, data->dtype(), src + offset * operation.wire_bytes(),
             operation.call.wire, n, operation.op, pre, post,
             data->nonfinite(step.final)},
            nullptr);
      });
}

void ReduceMany(const Step& step, const CpuKernelTable& kernels,
                SegmentData* data) {
  static_assert(kMaxReduceParties <= kernels::kMaxParties);
  const Operation& operation = *data->operation();
  const CollectiveCall& call = operation.call;
  const float scale =
      (step.raw ? operation.pre : 1.0F) * (step.final ? operation.post : 1.0F);
  // This rank's own contribution, and the result, are rounded as if they had
  // travelled. So the result does not depend on which rank owns a block, or on
  // whether one rank sums or all of them do. A partial sum is not a
  // contribution and stays unrounded.
  const DType wire = step.partial ? DType::kFloat32 : call.wire;
  const DType round = step.final ? call.wire : data->dtype();
  const Elements& own_memory = data->MemoryOf(step.own);
  const std::size_t own_begin = data->Position(step.own);
  std::array<const void*, kernels::kMaxParties> sources;
  data->MemoryOf(step.dst).ForEachRun(
      data->Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        for (int i = 0, landing = 0; i <= step.sources; ++i) {
          if (i == step.own_place) {
            // A contribution in the buffer has the same runs as dst, and an
            // input is a single run.
            sources[i] = own_memory.Contiguous(own_begin + offset, n);
          } else {
            sources[i] = data->Scratch(
                step.src.offset +
                static_cast<std::size_t>(landing++) * step.src.count + offset);
          }
        }
        void* dst = run;
        kernels.reduce_many({sources.data(), step.sources + 1, step.own_place,
                             call.wire, &dst, 1, data->dtype(), round, n,
                             operation.op, scale, data->nonfinite(step.final),
                             wire, step.last ? data->Unscale() : 1.0F},
                            nullptr);
      });
}

void Copy(const Step& step, SegmentData* data) {
  const Elements& from = data->MemoryOf(step.src);
  const std::size_t begin = data->Position(step.src);
  data->MemoryOf(step.dst).ForEachRun(
      data->Position(step.dst), step.dst.count,
      [&](std::byte* run, std::size_t n, std::size_t offset) {
        const std::byte* src = from.Contiguous(begin + offset, n);
        if (src != run) std::memmove(run, src, n * data->element_bytes());
      });
}

}  // namespace

void RunLocalStep(const Step& step, const kernels::CpuKernelTable& kernels,
                  SegmentData* data) {
  if (step.dst.count == 0) return;
  if (step.kind == Step::Kind::kReduce) Reduce(step, kernels, data);
  if (step.kind == Step::Kind::kReduceMany) ReduceMany(step, kernels, data);
  if (step.kind == Step::Kind::kCopy) Copy(step, data);
}

}  // namespace gradientflow
