#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "gradientflow/base/status.h"
#include "gradientflow/device/cuda_context.h"
#include "gradientflow/device/device.h"

namespace gradientflow {

class CudaEvent final : public Event {
 public:
  static Result<std::unique_ptr<Event>> Create(const CudaContext& context,
                                               unsigned flags);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Result<bool> Query() const override;
  Status Synchronize() const override;
  Result<double> SecondsSince(const Event& start) const override;
  void* native() const override { return event_; }

  int device() const { return context_.index(); }
  cudaEvent_t event() const { return event_; }

 private:
  CudaEvent(const CudaContext& context, cudaEvent_t event)
      : context_(context), event_(event) {}

  const CudaContext& context_;
  const cudaEvent_t event_;
};

class CudaStream final : public Stream {
 public:
  static Result<std::unique_ptr<CudaStream>> Create(const CudaContext& context,
                                                    int priority);
  // If `owned`, the destructor waits for the stream's work and destroys it.
  CudaStream(const CudaContext& context, cudaStream_t stream, bool owned)
      : context_(context), stream_(stream), owned_(owned) {}
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Status Copy(void* dst, const void* src, std::size_t bytes) override;
  Status Fill(void* dst, int byte, std::size_t bytes) override;
  Status Record(Event* event) override;
  Status Wait(const Event& event) override;
  Status Synchronize() override;
  void* native() const override { return stream_; }

 private:
  // Returns kFailedPrecondition if the caller's stream only records for a graph
  // what it is given. REQUIRES that the context is current.
  Status CheckRuns() const;

  const CudaContext& context_;
  const cudaStream_t stream_;
  const bool owned_;
};

}  // namespace gradientflow
