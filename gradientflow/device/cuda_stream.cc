#include "gradientflow/device/cuda_stream.h"

#include "gradientflow/base/str_cat.h"
#include "gradientflow/device/cuda_status.h"

namespace gradientflow {
namespace {

Status Invalid(int device, const char* what) {
  return Status(StatusCode::kInvalidArgument,
                StrCat("cuda:", device, ": ", what));
}

// Returns `event` as an event of this device, or null if it is not one.
const CudaEvent* Own(const Event* event, int device) {
  const auto* own = dynamic_cast<const CudaEvent*>(event);
  return own != nullptr && own->device() == device ? own : nullptr;
}

}  // namespace

Result<std::unique_ptr<Event>> CudaEvent::Create(const CudaContext& context,
                                                 unsigned flags) {
  const CurrentContext current(context);
  GF_RETURN_IF_ERROR(current.check());
  cudaEvent_t event = nullptr;
  GF_CUDA_RETURN_IF_ERROR(context.index(),
                          cudaEventCreateWithFlags(&event, flags),
                          "cudaEventCreateWithFlags()");
  return std::unique_ptr<Event>(new CudaEvent(context, event));
}

CudaEvent::~CudaEvent() {
  const CurrentContext current(context_);
  (void)cudaEventDestroy(event_);
}

Result<bool> CudaEvent::Query() const {
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) {
    (void)Succeeded(error);  // It is no error, so the caller must not see it.
    return false;
  }
  GF_CUDA_RETURN_IF_ERROR(device(), error, "cudaEventQuery()");
  return true;
}

Status CudaEvent::Synchronize() const {
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_CUDA_RETURN_IF_ERROR(device(), cudaEventSynchronize(event_),
                          "cudaEventSynchronize()");
  return Status();
}

Result<double> CudaEvent::SecondsSince(const Event& start) const {
  const CudaEvent* own = Own(&start, device());
  if (own == nullptr) return Invalid(device(), "not an event of this device");
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  float milliseconds = 0;
  const cudaError_t error =
      cudaEventElapsedTime(&milliseconds, own->event(), event_);
  if (error == cudaErrorNotReady) {
    (void)Succeeded(error);
    return Invalid(device(), "the time of an event that is not reached");
  }
  GF_CUDA_RETURN_IF_ERROR(device(), error, "cudaEventElapsedTime()");
  return 1e-3 * double{milliseconds};
}

Result<std::unique_ptr<CudaStream>> CudaStream::Create(
    const CudaContext& context, int priority) {
  const CurrentContext current(context);
  GF_RETURN_IF_ERROR(current.check());
  cudaStream_t stream = nullptr;
  GF_CUDA_RETURN_IF_ERROR(
      context.index(),
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
      "cudaStreamCreateWithPriority(priority ", priority, ")");
  return std::make_unique<CudaStream>(context, stream, true);
}

CudaStream::~CudaStream() {
  if (!owned_) return;
  const CurrentContext current(context_);
  (void)cudaStreamSynchronize(stream_);
  (void)cudaStreamDestroy(stream_);
}

Status CudaStream::CheckRuns() const {
  if (owned_) return Status();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  GF_CUDA_RETURN_IF_ERROR(context_.index(),
                          cudaStreamIsCapturing(stream_, &capture),
                          "cudaStreamIsCapturing()");
  if (capture == cudaStreamCaptureStatusNone) return Status();
  return Status(StatusCode::kFailedPrecondition,
                StrCat("cuda:", context_.index(),
                       ": the stream is being captured into a CUDA graph, of "
                       "which communication cannot be a part: end the capture "
                       "before gradients are marked or a step ends"));
}

// cudaMemcpyDefault finds out from the addresses on which side the memory is.
Status CudaStream::Copy(void* dst, const void* src, std::size_t bytes) {
  if (bytes == 0) return Status();
  const int device = context_.index();
  if (dst == nullptr || src == nullptr) {
    return Invalid(device, "a copy to or from nullptr");
  }
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_RETURN_IF_ERROR(CheckRuns());
  GF_CUDA_RETURN_IF_ERROR(
      device, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_),
      "cudaMemcpyAsync(to ", dst, ", from ", src, ", ", bytes, " bytes)");
  return Status();
}

Status CudaStream::Fill(void* dst, int byte, std::size_t bytes) {
  if (bytes == 0) return Status();
  const int device = context_.index();
  if (dst == nullptr) return Invalid(device, "a fill of nullptr");
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_RETURN_IF_ERROR(CheckRuns());
  GF_CUDA_RETURN_IF_ERROR(device, cudaMemsetAsync(dst, byte, bytes, stream_),
                          "cudaMemsetAsync(", dst, ", ", bytes, " bytes)");
  return Status();
}

Status CudaStream::Record(Event* event) {
  const int device = context_.index();
  const CudaEvent* own = Own(event, device);
  if (own == nullptr) return Invalid(device, "not an event of this device");
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_RETURN_IF_ERROR(CheckRuns());
  GF_CUDA_RETURN_IF_ERROR(device, cudaEventRecord(own->event(), stream_),
                          "cudaEventRecord()");
  return Status();
}

Status CudaStream::Wait(const Event& event) {
  const int device = context_.index();
  const CudaEvent* own = Own(&event, device);
  if (own == nullptr) return Invalid(device, "not an event of this device");
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_RETURN_IF_ERROR(CheckRuns());
  GF_CUDA_RETURN_IF_ERROR(
      device, cudaStreamWaitEvent(stream_, own->event(), cudaEventWaitDefault),
      "cudaStreamWaitEvent()");
  return Status();
}

Status CudaStream::Synchronize() {
  const CurrentContext current(context_);
  GF_RETURN_IF_ERROR(current.check());
  GF_CUDA_RETURN_IF_ERROR(context_.index(), cudaStreamSynchronize(stream_),
                          "cudaStreamSynchronize()");
  return Status();
}

}  // namespace gradientflow
