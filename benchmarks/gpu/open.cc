#include <cstdio>
#include <utility>

#include "benchmarks/gpu/rig.h"
#include "gradientflow/device/cuda_device.h"

namespace gradientflow::benchmarks {

Result<std::shared_ptr<Device>> OpenGpu(int index) {
  auto device = OpenCudaDevice(index);
  if (!device.ok()) {
    std::printf("cuda: no device\n");
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return device.status();
  }
  return std::shared_ptr<Device>(std::move(device).value());
}

}  // namespace gradientflow::benchmarks
