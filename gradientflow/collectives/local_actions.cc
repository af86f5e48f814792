#include "gradientflow/collectives/local_actions.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace gradientflow {
namespace {

using kernels::CpuKernelTable;

void Reduce(const Action& action, const CpuKernelTable& kernels,
            SegmentData* data) {
  const Operation& operation = *data->operation();
  const std::byte* src = data->Scratch(action.src.offset);
  const float pre = action.raw ? operation.pre : 1.0F;
  const float post = action.final ? operation.post : 1.0F;
  data->MemoryOf(action.dst)
      .ForEachRun(
          data->Position(action.dst), action.dst.count,
          [&](std::byte* run, std::size_t n, std::size_t offset) {
            kernels.accumulate(
                {run, data->dtype(), src + offset * operation.wire_bytes(),
                 operation.call.wire, n, operation.op, pre, post,
                 data->nonfinite(action.final)},
                nullptr);
          });
}

void ReduceMany(const Action& action, const CpuKernelTable& kernels,
                SegmentData* data) {
  static_assert(kMaxReduceParties <= kernels::kMaxParties);
  const Operation& operation = *data->operation();
  const CollectiveCall& call = operation.call;
  const float scale = (action.raw ? operation.pre : 1.0F) *
                      (action.final ? operation.post : 1.0F);
  // This rank's own contribution, and the result, are rounded as if they had
  // travelled. So the result does not depend on which rank owns a block, or on
  // whether one rank sums or all of them do. A partial sum is not a
  // contribution and stays unrounded.
  const DType wire = action.partial ? DType::kFloat32 : call.wire;
  const DType round = action.final ? call.wire : data->dtype();
  const Elements& own_memory = data->MemoryOf(action.own);
  const std::size_t own_begin = data->Position(action.own);
  std::array<const void*, kernels::kMaxParties> sources;
  data->MemoryOf(action.dst)
      .ForEachRun(
          data->Position(action.dst), action.dst.count,
          [&](std::byte* run, std::size_t n, std::size_t offset) {
            for (int i = 0, landing = 0; i <= action.sources; ++i) {
              if (i == action.own_place) {
                // A contribution in the buffer has the same runs as dst, and an
                // input is a single run.
                sources[i] = own_memory.Contiguous(own_begin + offset, n);
              } else {
                sources[i] = data->Scratch(action.src.offset +
                                           static_cast<std::size_t>(landing++) *
                                               action.src.count +
                                           offset);
              }
            }
            void* dst = run;
            kernels.reduce_many(
                {sources.data(), action.sources + 1, action.own_place,
                 call.wire, &dst, 1, data->dtype(), round, n, operation.op,
                 scale, data->nonfinite(action.final), wire,
                 action.last ? data->Unscale() : 1.0F},
                nullptr);
          });
}

void Copy(const Action& action, SegmentData* data) {
  const Elements& from = data->MemoryOf(action.src);
  const std::size_t begin = data->Position(action.src);
  data->MemoryOf(action.dst)
      .ForEachRun(data->Position(action.dst), action.dst.count,
                  [&](std::byte* run, std::size_t n, std::size_t offset) {
                    const std::byte* src = from.Contiguous(begin + offset, n);
                    if (src != run)
                      std::memmove(run, src, n * data->element_bytes());
                  });
}

}  // namespace

void RunLocalAction(const Action& action,
                    const kernels::CpuKernelTable& kernels, SegmentData* data) {
  if (action.dst.count == 0) return;
  if (action.kind == Action::Kind::kReduce) Reduce(action, kernels, data);
  if (action.kind == Action::Kind::kReduceMany)
    ReduceMany(action, kernels, data);
  if (action.kind == Action::Kind::kCopy) Copy(action, data);
}

}  // namespace gradientflow
