#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "gradientflow/base/workers.h"
#include "gradientflow/communicator/pool_memory.h"
#include "gradientflow/optimizer/optimizer.h"
#include "gradientflow/session/gradient_pool.h"

namespace gradientflow {

// Gradients in the memory of the host; in the arena, if peers share it.
class HostPool final : public GradientPool {
 public:
  static Result<std::unique_ptr<GradientPool>> Create(
      const GradientPoolArgs& args);

  ~HostPool() override;

  BufferView view() const override { return memory_.view(); }
  Status Zero(const BufferView& part) override;
  Collective& collective() override { return args_.core->executor(); }
  Handover& handover() override { return handover_; }
  Result<CscMemories> NewCscMemories() override {
    return CscMemories{HostCscMemory(&workers_), nullptr};
  }
  Status Update(std::size_t index, const OptimizerGroup& group,
                const Sent& sent) override;
  Result<std::span<const float>> Momentum(std::vector<float>*) override {
    return optimizer_.momentum();
  }
  std::size_t momentum_bytes() const override;
  Status RestoreMomentum(std::span<const std::byte> momentum) override;

 private:
  HostPool(const GradientPoolArgs& args, PoolMemory memory);

  const GradientPoolArgs args_;
  PoolMemory memory_;
  HostHandover handover_;
  Workers workers_;
  Optimizer optimizer_;
};

}  // namespace gradientflow
