#include "gradientflow/session/gradient_pool.h"

#include "gradientflow/session/device_pool.h"
#include "gradientflow/session/host_pool.h"

namespace gradientflow {

Result<std::unique_ptr<GradientPool>> GradientPool::Create(
    const GradientPoolArgs& args) {
  return args.core->device() == nullptr ? HostPool::Create(args)
                                        : DevicePool::Create(args);
}

}  // namespace gradientflow
