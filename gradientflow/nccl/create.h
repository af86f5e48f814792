#pragma once

// The public headers of this folder: LoadNccl() and NcclCollective::Create().
#include "gradientflow/nccl/nccl_api.h"         // IWYU pragma: export
#include "gradientflow/nccl/nccl_collective.h"  // IWYU pragma: export
