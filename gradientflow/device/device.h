#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow {

// A point in the work of a stream, to be recorded again and again: Record()
// moves it. Made by a Device, and destroyed before it.
// Recording and waiting from several threads at once is the caller's to order;
// Query() from any thread.
class Event {
 public:
  virtual ~Event() = default;
  // Whether the work before the last Record() is done: true too if there was
  // none. Does not block. An error is the device's, and stays.
  virtual Result<bool> Query() const = 0;
  // Blocks the calling thread until Query() says true.
  virtual Status Synchronize() const = 0;
};

// An ordered queue of work on one device. All calls return at once; an error
// of the work itself shows at a later call, or at an Event.
// NOT thread-safe: one thread submits at a time.
class Stream {
 public:
  virtual ~Stream() = default;  // Of an own stream: waits for its work.
  // Copies bytes; either side is memory of the device, memory from
  // AllocatePinned() or RegisterHost(), or (slower, and not asynchronous on
  // every device) any host memory. Lent until the work is done.
  virtual Status Copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual Status Fill(void* dst, int byte, std::size_t bytes) = 0;
  virtual Status Record(Event* event) = 0;
  // Work submitted from now on begins after `event`'s last Record(). Other
  // streams, and the host, do not wait.
  virtual Status Wait(const Event& event) = 0;
  // Blocks the calling thread until the stream is empty.
  virtual Status Synchronize() = 0;
  // For kernels and other libraries: cudaStream_t, or the fake's.
  virtual void* native() const = 0;
};

// Memory of a device (or pinned memory of the host). Freed with the last copy;
// freeing waits for no work: the owner sees to that.
using DeviceMemory = std::shared_ptr<std::byte>;

// Memory, streams and kernels of one device: cuda_device.h, and in tests a
// fake on the CPU whose streams are threads. Thread-safe. Outlives all that it
// made.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceId id() const = 0;
  virtual std::string description() const = 0;  // "cuda:0 NVIDIA H200".
  // Of the hardware: the same in all processes that use it, and like no other
  // device's on any host. Never 0.
  virtual std::uint64_t unique_id() const = 0;
  virtual const kernels::KernelTable& kernels() const = 0;
  virtual const kernels::ChunkKernelTable& chunk_kernels() const = 0;

  // Of the device, at least 256-byte aligned, zeroed. Bytes may be 0.
  // kResourceExhausted says how much was asked for and how much is free.
  virtual Result<DeviceMemory> Allocate(std::size_t bytes) = 0;
  // Of the host, page-locked, reachable by asynchronous copies.
  virtual Result<DeviceMemory> AllocatePinned(std::size_t bytes) = 0;
  // Page-locks host memory that is there already, until the result is gone.
  virtual Result<std::shared_ptr<void>> RegisterHost(void* data,
                                                     std::size_t bytes) = 0;
  // A stream of its own, that does not wait for the default stream; urgent
  // ones go before others where the device knows priorities.
  virtual Result<std::unique_ptr<Stream>> NewStream(bool urgent) = 0;
  // The caller's stream (cudaStream_t; null: the legacy default stream).
  // Borrowed: neither owned nor synchronised on destruction.
  virtual std::unique_ptr<Stream> Wrap(void* native) = 0;
  virtual Result<std::unique_ptr<Event>> NewEvent() = 0;

  // Runs `body` with the device current for the calling thread, for libraries
  // that look at that; what was current before is so again after.
  virtual Status RunCurrent(const std::function<Status()>& body) {
    return body();
  }

  // What makes the device current for the thread that calls it, for good; of
  // use beyond the device's life.
  virtual std::function<void()> CurrentSetter() const {
    return [] {};
  }

  // What a kernel of kernels() or chunk_kernels() returned, as a Status
  // with its name. The error may be that of earlier work: kUnavailable if the
  // device is lost.
  virtual Status KernelStatus(std::string_view kernel, int error) const {
    if (error == 0) return {};
    return {StatusCode::kInternal, StrCat(description(), ": kernel ", kernel,
                                          " failed with device error ", error)};
  }

  // Whether `pointer` is memory of this device (not pinned host memory).
  virtual bool Owns(const void* pointer) const = 0;
};

}  // namespace gradientflow
