#include "gradientflow/session/host_pool.h"

#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/observe/logger.h"
#include "kernels/kernels.h"

namespace gradientflow {

HostPool::HostPool(const GradientPoolArgs& args, PoolMemory memory)
    : args_(args),
      memory_(std::move(memory)),
      workers_(
          ComputeThreads(args.options->compute_threads, args.core->cores()),
          args.core->spin()),
      optimizer_(*args.layout, kernels::CpuKernels(), args.skip_lars,
                 args.options->sparsity > 0 ? args.options->chunk_elements : 0,
                 &workers_) {}

Result<std::unique_ptr<GradientPool>> HostPool::Create(
    const GradientPoolArgs& args) {
  Result<PoolMemory> memory = PoolMemory();
  // Holds the baton, because other sessions and callers use the arena, too.
  args.core->progress().Do([&] {
    memory = PoolMemory::Allocate(
        args.core->arena(), args.core->places(),
        args.layout->elements() * SizeOf(args.options->pool_dtype));
  });
  if (!memory.ok()) return memory.status();
  if (const Status& why = memory.value().unreached(); !why.ok()) {
    args.core->logger().Log(
        LogLevel::kWarning,
        StrCat("RDMA copies all gradients: ", why.message()));
  }
  std::unique_ptr<HostPool> pool(new HostPool(args, std::move(memory).value()));
  // The memory may have belonged to another session.
  if (args.options->accumulate) GF_RETURN_IF_ERROR(pool->Zero(pool->view()));
  return std::unique_ptr<GradientPool>(std::move(pool));
}

HostPool::~HostPool() {
  args_.core->progress().Do([this] { memory_ = PoolMemory(); });
}

Status HostPool::Zero(const BufferView& part) {
  std::fill_n(part.data, part.bytes, std::byte{0});
  return Status();
}

Status HostPool::Update(std::size_t, const OptimizerGroup& group,
                        const Sent& sent) {
  return optimizer_.Update(group.config,
                           {memory_.view().data, args_.options->pool_dtype,
                            sent.extents, sent.gradient_scale},
                           group.weights);
}

std::size_t HostPool::momentum_bytes() const {
  return optimizer_.momentum().size_bytes();
}

Status HostPool::RestoreMomentum(std::span<const std::byte> momentum) {
  return optimizer_.RestoreMomentum(momentum);
}

}  // namespace gradientflow
