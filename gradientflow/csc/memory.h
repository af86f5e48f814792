#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "kernels/chunk_kernels.h"

namespace gradientflow {

// A kind of memory in which CSC works: where its buffers come from, which
// kernels pass over them (residual, unpack and norms, restore, rescale, top-k:
// kernels/chunk_kernels.h), and how the caller learns that they are done.
// Work is done in the order of the calls. NOT thread-safe.
class CscMemory {
 public:
  virtual ~CscMemory() = default;

  // Whether calls return before their work is done, and collectives need the
  // sent chunks packed. Otherwise a call is over when it returns, and chunks
  // are sent from where they are.
  virtual bool asynchronous() const = 0;
  virtual std::string description() const = 0;  // "the host", for errors.
  virtual const kernels::ChunkKernelTable& kernels() const = 0;
  virtual void* stream() const = 0;  // For kernels().
  // What a kernel returned, with its name.
  virtual Status KernelStatus(const char* kernel, int error) const = 0;

  // Zeroed, aligned to 256 bytes or a page. kResourceExhausted: no room.
  virtual Result<DeviceMemory> Allocate(std::size_t bytes) = 0;
  // On the host, where copies to and from Allocate() are quick. Not zeroed.
  virtual Result<DeviceMemory> AllocateOnHost(std::size_t bytes) = 0;
  // Between any two of these, and other memory of the host.
  virtual Status Copy(void* dst, const void* src, std::size_t bytes) = 0;
  // Blocks until all work is done.
  virtual Status Synchronize() = 0;
  // Marks the end of the work so far; Reached() says whether it is done.
  virtual Status Mark() = 0;
  virtual Result<bool> Reached() const = 0;
};

// The memory of this process, with the CPU's kernels.
std::unique_ptr<CscMemory> HostCscMemory();

// The memory of a device, with work in the order of `stream`. Both are borrowed
// and outlive it.
Result<std::unique_ptr<CscMemory>> DeviceCscMemory(Device* device,
                                                   Stream* stream);

}  // namespace gradientflow
