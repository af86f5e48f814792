#include <cstdio>
#include <cstdlib>
#include <utility>

#include "gradientflow/device/cuda_device.h"
#include "tests/gpu/session_device.h"

namespace gradientflow::testing {

// All ranks share GPU 0.
std::shared_ptr<Device> OpenTestDevice(int) {
  auto device = OpenCudaDevice(0);
  if (device.ok()) return std::move(device).value();
  std::printf("[  FAILED  ] %s\n", device.status().ToString().c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

}  // namespace gradientflow::testing
