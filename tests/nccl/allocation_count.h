#pragma once

#include <cstdint>

#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"

// Counts the heap allocations of the code under test, without those of the
// fakes below it, which allocate more than the real libraries.
namespace gradientflow::testing {

// Allocations of this thread so far, outside of the fakes.
std::uint64_t HeapAllocations();

// Returns `api` with functions whose allocations are not counted. Only one at a
// time.
std::shared_ptr<const NcclApi> Uncounted(
    const std::shared_ptr<const NcclApi>& api);

// Returns `device` with calls that are not counted; `device` must outlive the
// result.
std::unique_ptr<Device> Uncounted(Device* device);

}  // namespace gradientflow::testing
