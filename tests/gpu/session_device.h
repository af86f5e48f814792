#pragma once

#include <memory>

#include "gradientflow/device/device.h"

namespace gradientflow::testing {

// The device on which session_suite.cc runs; there is one library for CUDA and
// one for the fake. Ends the process if there is no device.
std::shared_ptr<Device> OpenTestDevice(int rank);

}  // namespace gradientflow::testing
