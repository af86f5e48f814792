#include "gradientflow/device/cuda_status.h"

#include <utility>

namespace gradientflow {
namespace {

StatusCode CodeOf(cudaError_t error) {
  if (DeviceIsLost(error)) return StatusCode::kUnavailable;
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
      return StatusCode::kResourceExhausted;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
      return StatusCode::kInvalidArgument;
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorCapturedEvent:
      return StatusCode::kFailedPrecondition;
    case cudaErrorCudartUnloading:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsServerNotReady:
      return StatusCode::kUnavailable;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorCompatNotSupportedOnDevice:
      return StatusCode::kUnimplemented;
    default:
      return StatusCode::kInternal;
  }
}

}  // namespace

bool DeviceIsLost(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorContextIsDestroyed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

bool Succeeded(cudaError_t error) {
  if (error == cudaSuccess) return true;
  if (cudaPeekAtLastError() == error) (void)cudaGetLastError();
  return false;
}

Status CudaError(cudaError_t error, int device, const std::string& call,
                 const char* file, int line) {
  (void)Succeeded(error);
  std::string message =
      StrCat("cuda:", device, ": ", call, ": ", cudaGetErrorString(error), " (",
             cudaGetErrorName(error), "), at ", file, ":", line);
  if (DeviceIsLost(error)) {
    // Work fails later than it is submitted, so this call is only where the
    // failure shows.
    message +=
        "; some earlier work on the device failed, and the device is lost for "
        "this process";
  }
  return Status(CodeOf(error), std::move(message));
}

}  // namespace gradientflow
