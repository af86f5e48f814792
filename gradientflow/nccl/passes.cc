#include "gradientflow/nccl/passes.h"

#include <cstdint>

// The kernels that run around NCCL's reduction, on the same stream: packing
// into the staging before it; looking for infinities and NaN, scaling and
// unpacking after it. plan.h says which of them a call needs.
namespace gradientflow {
namespace {

// What the passes of one call have in common.
struct Pass {
  const NcclOperation& operation;
  const PassTarget& target;
  const kernels::KernelTable& kernels;
  void* stream;

  std::uint32_t* nonfinite() const { return operation.nonfinite(); }

  Status Pack(const void* run, std::size_t count, std::size_t before) const {
    const NcclPlan& plan = operation.plan;
    return target.device->KernelStatus(
        "convert",
        kernels.convert({run, operation.call.dtype,
                         target.staging + before * SizeOf(plan.type), plan.type,
                         nullptr, count, plan.pack_scale, nullptr},
                        stream));
  }

  Status Look(const void* run, std::size_t count) const {
    const DType type = operation.call.dtype;
    return target.device->KernelStatus(
        "find_nonfinite",
        kernels.find_nonfinite({run, type, count, nonfinite()}, stream));
  }

  // The convert kernel takes gradient types only. Other floats go through a
  // reduction of a single operand.
  Status Scale(void* run, std::size_t count) const {
    const DType type = operation.call.dtype;
    const float scale = operation.plan.after_scale;
    if (IsGradientType(type)) {
      return target.device->KernelStatus(
          "convert", kernels.convert({run, type, run, type, nullptr, count,
                                      scale, nonfinite()},
                                     stream));
    }
    const void* source = run;
    return target.device->KernelStatus(
        "reduce_many",
        kernels.reduce_many({&source, 1, -1, type, &run, 1, type, type, count,
                             kernels::ReduceOp::kSum, scale, nonfinite()},
                            stream));
  }

  Status Unpack(void* run, std::size_t count, std::size_t before) const {
    const DType wire = operation.plan.type;
    const DType type = operation.call.dtype;
    const std::byte* packed = target.staging + before * SizeOf(wire);
    if (IsGradientType(type)) {
      return target.device->KernelStatus(
          "convert", kernels.convert({packed, wire, run, type, nullptr, count,
                                      operation.plan.after_scale, nonfinite()},
                                     stream));
    }
    GF_RETURN_IF_ERROR(target.stream->Copy(run, packed, count * SizeOf(type)));
    return operation.plan.look ? Scale(run, count) : Status();
  }
};

Pass PassFor(const NcclOperation& operation, const PassTarget& target) {
  return {operation, target, target.device->kernels(), target.stream->native()};
}

// For the host, if it is the host that looks.
Status CopyFinding(const NcclOperation& operation, const PassTarget& target) {
  if (!operation.plan.look || operation.ahead()) return Status();
  return target.stream->Copy(operation.slot->host, operation.slot->device,
                             sizeof(Finding));
}

// The result of a reduce is on its root alone.
bool HasResult(const CollectiveCall& call, int rank) {
  return call.kind != CollectiveKind::kReduce || rank == call.root;
}

}  // namespace

Status RunBefore(const NcclOperation& operation, const PassTarget& target) {
  const NcclPlan& plan = operation.plan;
  if (plan.look && !operation.ahead()) {
    GF_RETURN_IF_ERROR(
        target.stream->Fill(operation.slot->device, 0, sizeof(Finding)));
  }
  if (!plan.staged) return Status();
  const Pass pass = PassFor(operation, target);
  return operation.ForEachRun(
      [&](const std::byte* run, std::size_t count, std::size_t before) {
        return pass.Pack(run, count, before);
      });
}

Status RunAfter(const NcclOperation& operation, const PassTarget& target) {
  const NcclPlan& plan = operation.plan;
  if (plan.look_at_sums) return CopyFinding(operation, target);
  if (plan.after == AfterPass::kNone ||
      !HasResult(operation.call, target.rank)) {
    return Status();
  }
  const Pass pass = PassFor(operation, target);
  GF_RETURN_IF_ERROR(operation.ForEachRun(
      [&](std::byte* run, std::size_t count, std::size_t before) {
        switch (plan.after) {
          case AfterPass::kLook:
            return pass.Look(run, count);
          case AfterPass::kUnpack:
            return pass.Unpack(run, count, before);
          default:
            return pass.Scale(run, count);
        }
      }));
  return CopyFinding(operation, target);
}

bool FoundNonfinite(const NcclOperation& operation) {
  if (!operation.plan.look || operation.slot == nullptr) return false;
  return operation.slot->host->nonfinite != 0;
}

}  // namespace gradientflow
