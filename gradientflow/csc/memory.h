#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/workers.h"
#include "gradientflow/device/device.h"
#include "gradientflow/device/device_sync.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

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
  virtual bool asynchronous() const { return false; }
  virtual std::string description() const = 0;  // "the host"; for errors.
  virtual const kernels::ChunkKernelTable& kernels() const = 0;
  virtual void* stream() const { return nullptr; }  // For kernels().
  // The elementwise kernel of that name (kernels/kernels.h).
  virtual Status Convert(const kernels::ConvertArgs& args) = 0;
  // Threads among which a pass divides its chunks, one kernel call for each
  // chunk. If they are null, a pass is one call.
  virtual Workers* workers() const { return nullptr; }
  // Turns what a kernel returned into a Status that names the kernel.
  virtual Status KernelStatus(const char* kernel, int error) const = 0;

  // Zeroed, aligned to 256 bytes or a page. Returns kResourceExhausted if there
  // is no room.
  virtual Result<DeviceMemory> Allocate(std::size_t bytes) = 0;
  // The same, for what a collective will send again and again.
  virtual Result<DeviceMemory> AllocateForWire(std::size_t bytes) {
    return Allocate(bytes);
  }
  // Memory of the host, with fast copies to and from Allocate()'s. Not zeroed.
  virtual Result<DeviceMemory> AllocateOnHost(std::size_t bytes) = 0;
  // Copies between any two of these, and other memory of the host.
  virtual Status Copy(void* dst, const void* src, std::size_t bytes) = 0;
  // Zeroes gradients, in the order of the work that writes them. Unlike the
  // other calls it may come from any thread, and from several at a time.
  virtual Status Zero(void* grads, std::size_t bytes) = 0;
  // Copies n gradients of `type` into the host's float32 `values`, or from
  // there, rounded. Done when they return; writing waits for what the owner of
  // the gradients has submitted to a device. On the host, calls for different
  // gradients may run at the same time.
  Status ReadGradients(const void* grads, DType type, float* values,
                       std::size_t n);
  Status WriteGradients(const float* values, void* grads, DType type,
                        std::size_t n);
  // Work begins only after what the owner of the gradients has submitted.
  virtual Status FollowOwner() { return {}; }
  // New work begins only after the pool's elements before `written_end` are
  // written; see DeviceSync.
  virtual Status AwaitWritten(std::size_t written_end) {
    static_cast<void>(written_end);
    return {};
  }
  // Blocks until all work is done.
  virtual Status Synchronize() { return {}; }
  // Mark() marks the end of the work so far, and Reached() says whether that
  // work is done. mark() is the event behind that, which keeps its time; null
  // on the host.
  virtual Status Mark() { return {}; }
  virtual Result<bool> Reached() const { return true; }
  virtual const Event* mark() const { return nullptr; }

  // The order between streams of a device, for memories that have one each. The
  // host does not wait. After Send(), new work on the stream of the collectives
  // (the wire) begins only when this memory's work so far is done; after
  // Receive(), new work of this memory begins only when the wire's work so far
  // is done; after Follow(), only when the work of `other` so far is done.
  virtual Status Send() { return {}; }
  virtual Status Receive() { return {}; }
  virtual Status Follow(CscMemory& other) {
    static_cast<void>(other);
    return {};
  }
  // An event for the work so far, or null if all of it is done. Valid until the
  // next call.
  virtual Result<const Event*> Here() { return nullptr; }
};

// The memory that a session's steps work in.
struct CscMemories {
  std::unique_ptr<CscMemory> before;  // For all but passes after the exchange.
  std::unique_ptr<CscMemory> after;   // For those; null: `before`.
};

// The memory of this process, with the kernels of the CPU. `workers` are
// borrowed and outlive the result; null: the calling thread works alone.
std::unique_ptr<CscMemory> HostCscMemory(Workers* workers = nullptr);

// All are borrowed, and outlive the memory.
struct DeviceCscArgs {
  Device* device = nullptr;
  Stream* stream = nullptr;
  // Gradients are written in the order of its producer; null: of `stream`.
  DeviceSync* sync = nullptr;
  // The stream of the collectives; null: `stream` itself.
  Stream* wire = nullptr;
  // What AllocateForWire() does; empty: what Allocate() does.
  std::function<Result<DeviceMemory>(std::size_t bytes)> for_wire = {};
};

// The memory of a device, with work in the order of args.stream.
Result<std::unique_ptr<CscMemory>> DeviceCscMemory(const DeviceCscArgs& args);

}  // namespace gradientflow
