#include "gradientflow/device/cuda_probe.h"

#include <cuda_runtime_api.h>

#include <string>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/device/cuda_context.h"
#include "gradientflow/device/cuda_device.h"
#include "gradientflow/device/cuda_facts.h"
#include "gradientflow/device/cuda_status.h"

namespace gradientflow {
namespace {

Status ReadMemory(int index, CudaFacts::Device* device) {
  const auto context = CudaContext::Of(index);
  GF_RETURN_IF_ERROR(context.status());
  const CurrentContext current(*context.value());
  GF_RETURN_IF_ERROR(current.check());
  GF_CUDA_RETURN_IF_ERROR(
      index, cudaMemGetInfo(&device->free_bytes, &device->total_bytes),
      "cudaMemGetInfo()");
  return Status();
}

Status ReadProperties(int index, CudaFacts::Device* device) {
  cudaDeviceProp properties = {};
  GF_CUDA_RETURN_IF_ERROR(index, cudaGetDeviceProperties(&properties, index),
                          "cudaGetDeviceProperties()");
  device->name = properties.name;
  device->major = properties.major;
  device->minor = properties.minor;
  device->total_bytes = properties.totalGlobalMem;
  return Status();
}

CudaFacts::Device ReadDevice(int index) {
  CudaFacts::Device device;
  device.name = "unknown";
  Status status = ReadProperties(index, &device);
  if (status.ok() && index < kMaxCudaDevices) {
    status = ReadMemory(index, &device);
  }
  device.problem = status.message();
  return device;
}

}  // namespace

CudaFacts ProbeCuda(int* count) {
  CudaFacts facts;
  *count = 0;
  facts.built_in = true;
  (void)cudaRuntimeGetVersion(&facts.runtime_version);
  if (!Succeeded(cudaDriverGetVersion(&facts.driver_version)) ||
      facts.driver_version == 0) {
    facts.reason = "no NVIDIA driver on this machine";
    return facts;
  }
  const cudaError_t error = cudaGetDeviceCount(count);
  if (!Succeeded(error)) {
    *count = 0;
    facts.reason =
        StrCat(cudaGetErrorString(error), " (", cudaGetErrorName(error),
               "), driver ", CudaVersionText(facts.driver_version),
               ", runtime ", CudaVersionText(facts.runtime_version));
  } else if (*count == 0) {
    facts.reason = "the driver shows none to this process";
  }
  return facts;
}

CudaFacts ReadCudaFacts() {
  int count = 0;
  CudaFacts facts = ProbeCuda(&count);
  for (int i = 0; i < count; ++i) facts.devices.push_back(ReadDevice(i));
  return facts;
}

}  // namespace gradientflow
