#pragma once

// All that is public of NCCL: LoadNccl() and NcclCollective::Create().
#include "transports/nccl/nccl_api.h"         // IWYU pragma: export
#include "transports/nccl/nccl_collective.h"  // IWYU pragma: export
