#pragma once

#include <memory>

#include "gradientflow/device/device.h"

namespace gradientflow::testing {

// The device that session_suite.cc runs on; a library each for CUDA and for the
// fake. Ends the process if there is none.
std::shared_ptr<Device> OpenTestDevice(int rank);

}  // namespace gradientflow::testing
