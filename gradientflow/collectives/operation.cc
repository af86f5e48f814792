#include "gradientflow/collectives/operation.h"

#include <cstring>
#include <utility>

namespace gradientflow {

// A float64 result gets its factors from Executor::Finish() (`last`), all
// others from the kernels (`post`, or `pre` as StartPart() decides). Where
// nothing converts there is no last rounding, so `unscale` goes into `post`.
void Operation::SetFactors() {
  op = call.op == ReduceOp::kMean ? kernels::ReduceOp::kSum
                                  : static_cast<kernels::ReduceOp>(call.op);
  pre = 1.0F;
  post = call.scale;
  unscale = UnscaleOf(call);
  if (!converts()) post *= std::exchange(unscale, 1.0F);
  if (call.op == ReduceOp::kMean) post /= static_cast<float>(group->size);
  last = 1.0;
  if (call.dtype != DType::kFloat64 || !Reduces(call.kind)) return;
  post = 1.0F;
  const bool elsewhere =
      call.kind == CollectiveKind::kReduce && group->rank != call.root;
  if (elsewhere) return;
  last = double{call.scale};
  if (call.op == ReduceOp::kMean) last /= group->size;
}

// The extents stay as they are; Elements makes a gapless sequence of them.
void Operation::SetMemory() {
  extent_starts.clear();
  std::size_t before = 0;
  for (const Extent& extent : call.extents) {
    extent_starts.push_back(before);
    before += extent.count;
  }
  auto* output = static_cast<std::byte*>(call.output);
  data = call.extents.empty()
             ? Elements(output, element_bytes())
             : Elements(output, element_bytes(), &call.extents, &extent_starts);
  // The schedules only read the input.
  input = Elements(static_cast<std::byte*>(const_cast<void*>(call.input)),
                   element_bytes());
  if (call.kind == CollectiveKind::kBarrier) {
    call.dtype = call.wire = DType::kInt8;
    data = Elements(&barrier, 1);
  }
}

void Operation::ScaleResult() const {
  if (last == 1.0) return;
  data.ForEachRun(
      0, call.count, [&](std::byte* run, std::size_t n, std::size_t) {
        for (std::size_t i = 0; i < n; ++i) {
          double value;
          std::memcpy(&value, run + i * sizeof(value), sizeof(value));
          value *= last;
          std::memcpy(run + i * sizeof(value), &value, sizeof(value));
        }
      });
}

}  // namespace gradientflow
