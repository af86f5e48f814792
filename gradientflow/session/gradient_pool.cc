#include "gradientflow/session/gradient_pool.h"

#include "gradientflow/session/device_pool.h"
#include "gradientflow/session/host_pool.h"

namespace gradientflow {

Result<std::unique_ptr<GradientPool>> GradientPool::Create(
    const GradientPoolParts& parts) {
  return parts.core->device() == nullptr ? HostPool::Create(parts)
                                         : DevicePool::Create(parts);
}

}  // namespace gradientflow
