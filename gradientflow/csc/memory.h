#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/workers.h"
#include "gradientflow/device/device.h"
#include "gradientflow/device/device_sync.h"
#include "kernels/chunk_kernels.h"

namespace gradientflow {

// A kind of memory in which CSC works. It allocates the buffers, has the
// kernels that pass over them (residual, unpack and norms, restore, rescale,
// top-k: kernels/chunk_kernels.h), and tells when they are done. Work is done
// in the order of the calls. NOT thread-safe.
class CscMemory {
 public:
  virtual ~CscMemory() = default;

  // If true, calls return before their work is done, and collectives need the
  // sent chunks packed. Otherwise the work is done when a call returns, and
  // chunks are sent from where they are.
  virtual bool asynchronous() const = 0;
  virtual std::string description() const = 0;  // "the host"; for errors.
  virtual const kernels::ChunkKernelTable& kernels() const = 0;
  virtual void* stream() const = 0;  // For kernels().
  // Threads among which a pass divides its chunks, one kernel call for each
  // chunk. Null: a pass is one call.
  virtual Workers* workers() const { return nullptr; }
  // Turns what a kernel returned into a Status that names the kernel.
  virtual Status KernelStatus(const char* kernel, int error) const = 0;

  // Zeroed, aligned to 256 bytes or a page. Returns kResourceExhausted if there
  // is no room.
  virtual Result<DeviceMemory> Allocate(std::size_t bytes) = 0;
  // Memory of the host, with fast copies to and from Allocate()'s. Not zeroed.
  virtual Result<DeviceMemory> AllocateOnHost(std::size_t bytes) = 0;
  // Copies between any two of these, and other memory of the host.
  virtual Status Copy(void* dst, const void* src, std::size_t bytes) = 0;
  // Zeroes gradients, in the order of whoever writes them. Unlike the other
  // calls it may come from any thread, and from several at a time.
  virtual Status Zero(void* grads, std::size_t bytes) = 0;
  // Copies n gradients of `type` into the host's float32 `values`, or from
  // there, rounded. Done when they return; writing waits for what the owner of
  // the gradients has submitted to a device. On the host, calls for different
  // gradients may run at the same time.
  virtual Status ReadGradients(const void* grads, DType type, float* values,
                               std::size_t n) = 0;
  virtual Status WriteGradients(const float* values, void* grads, DType type,
                                std::size_t n) = 0;
  // Blocks until all work is done.
  virtual Status Synchronize() = 0;
  // Mark() marks the end of the work so far, and Reached() says whether that
  // work is done.
  virtual Status Mark() = 0;
  virtual Result<bool> Reached() const = 0;
};

// The memory of this process, with the kernels of the CPU. `workers` are
// borrowed and outlive the result; null: the calling thread works alone.
std::unique_ptr<CscMemory> HostCscMemory(Workers* workers = nullptr);

// The memory of a device, with work in the order of `stream`. Gradients are
// written in the order of the producer of `sync`, or of `stream` if that is
// null. All arguments are borrowed and outlive the result.
Result<std::unique_ptr<CscMemory>> DeviceCscMemory(Device* device,
                                                   Stream* stream,
                                                   DeviceSync* sync = nullptr);

}  // namespace gradientflow
