#include "gradientflow/collectives/alone.h"

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "gradientflow/base/workers.h"

namespace gradientflow {
namespace {

// A rank that is alone does this many elements in one go. Meanwhile its caller
// can do nothing else, such as look at results while they are in the caches.
constexpr std::size_t kAloneElements = std::size_t{512} << 10;

// Returns whether a result is not finite. Runs on any thread.
bool RoundPart(const Operation& operation, const Extent& part,
               const kernels::CpuKernelTable& kernels) {
  const CollectiveCall& call = operation.call;
  const bool floats = IsGradientType(call.dtype);
  std::uint32_t nonfinite = 0;
  operation.data.ForEachRun(
      part.begin, part.count, [&](std::byte* run, std::size_t n, std::size_t) {
        const void* source = run;
        void* dest = run;
        kernels.reduce_many(
            {&source, 1, -1, call.dtype, &dest, 1, call.dtype, call.wire, n,
             operation.op, operation.post, floats ? &nonfinite : nullptr,
             floats ? call.wire : DType::kFloat32, operation.unscale},
            nullptr);
      });
  return nonfinite != 0;
}

}  // namespace

std::vector<Extent> TakePartsAlone(Operation* operation) {
  std::vector<Extent> parts;
  std::size_t elements = 0;
  while (operation->launched < operation->plan.segments &&
         elements < kAloneElements && operation->NextPartIsThere()) {
    parts.push_back(operation->NextPart());
    elements += parts.back().count;
    ++operation->launched;
  }
  return parts;
}

bool RoundAlone(const Operation& operation, const std::vector<Extent>& parts,
                const kernels::CpuKernelTable& kernels) {
  std::size_t elements = 0;
  for (const Extent& part : parts) elements += part.count;
  std::atomic<bool> nonfinite{false};
  const Status run = RunPass(operation.call.workers, parts.size(), elements,
                             [&](std::size_t i) {
                               if (RoundPart(operation, parts[i], kernels))
                                 nonfinite = true;
                               return Status();
                             });
  assert(run.ok());
  static_cast<void>(run);
  return nonfinite;
}

}  // namespace gradientflow
