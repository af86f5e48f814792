#pragma once

#include <memory>

#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"

// Fakes whose allocations tests/base/heap_count.h does not count.
namespace gradientflow::testing {

// Returns `api` with functions whose allocations are not counted. Only one at a
// time.
std::shared_ptr<const NcclApi> WithoutCount(
    const std::shared_ptr<const NcclApi>& api);

// Returns `device` with calls that are not counted; `device` must outlive the
// result.
std::unique_ptr<Device> WithoutCount(Device* device);

}  // namespace gradientflow::testing
