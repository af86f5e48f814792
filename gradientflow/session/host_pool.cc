#include "gradientflow/session/host_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/kernels.h"

namespace gradientflow {

HostPool::HostPool(const GradientPoolParts& parts, PoolMemory memory)
    : parts_(parts),
      memory_(std::move(memory)),
      optimizer_(
          *parts.layout, kernels::CpuKernels(), parts.skip_lars,
          parts.options->sparsity > 0 ? parts.options->chunk_elements : 0) {}

Result<std::unique_ptr<GradientPool>> HostPool::Create(
    const GradientPoolParts& parts) {
  Result<PoolMemory> memory = PoolMemory();
  // Holds the baton, because other sessions and callers use the arena, too.
  parts.core->progress().Do([&] {
    memory = PoolMemory::Allocate(
        parts.core->arena(),
        parts.layout->elements() * SizeOf(parts.options->pool_dtype));
  });
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<GradientPool>(
      new HostPool(parts, std::move(memory).value()));
}

HostPool::~HostPool() {
  parts_.core->progress().Do([this] { memory_ = PoolMemory(); });
}

Status HostPool::Zero(const BufferView& part) {
  std::fill_n(part.data, part.bytes, std::byte{0});
  return Status();
}

Status HostPool::Update(std::size_t, const OptimizerGroup& group,
                        const Sent& sent) {
  return optimizer_.Step(group.config,
                         {memory_.view().data, parts_.options->pool_dtype,
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
