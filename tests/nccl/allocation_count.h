#pragma once

#include <cstdint>

#include "gradientflow/device/device.h"
#include "gradientflow/nccl/nccl_api.h"

// Counts what the code under test asks of the heap, apart from the fakes below
// it, which ask for more than the real ones.
namespace gradientflow::testing {

// Allocations by this thread so far, outside of the fakes.
std::uint64_t HeapAllocations();

// `api` with functions that are not counted. One at a time.
std::shared_ptr<const NcclApi> Uncounted(
    const std::shared_ptr<const NcclApi>& api);

// `device`, with calls that are not counted. It outlives what is returned.
std::unique_ptr<Device> Uncounted(Device* device);

}  // namespace gradientflow::testing
