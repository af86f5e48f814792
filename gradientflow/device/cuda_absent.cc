#include <memory>

#include "gradientflow/base/status.h"
#include "gradientflow/device/cuda_device.h"
#include "gradientflow/device/cuda_facts.h"

// Stands in for all of CUDA in a build without it.
namespace gradientflow {

CudaFacts ReadCudaFacts() {
  CudaFacts facts;
  facts.reason =
      "built without CUDA: no CUDA toolkit where this was built, or "
      "--define=cuda=off";
  return facts;
}

int CudaDeviceCount() { return 0; }

Result<std::unique_ptr<Device>> OpenCudaDevice(int /*index*/) {
  return Status(StatusCode::kUnimplemented, ReadCudaFacts().ToString());
}

}  // namespace gradientflow
