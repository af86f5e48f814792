#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/fd.h"
#include "gradientflow/base/status.h"
#include "gradientflow/base/str_cat.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow {

// Returns whether `why`, the error of a call to a device, its streams or its
// events, says that the device is lost for this process: it does no more work.
inline bool MeansLost(const Status& why) {
  return why.code() == StatusCode::kUnavailable;
}

// A point in the work of a stream. It may be recorded again and again; each
// Record() moves it. Made by a Device, and destroyed before that device. The
// caller has to order recording and waiting on several threads; Query() may be
// called on any thread.
class Event {
 public:
  virtual ~Event() = default;
  // Returns whether the work before the last Record() is done; true if nothing
  // was recorded. Does not block. An error says nothing about the work, unless
  // it MeansLost().
  virtual Result<bool> Query() const = 0;
  // Blocks the calling thread until Query() would return true.
  virtual Status Synchronize() const = 0;
  // Returns the seconds from `start` to this event on the device's clock. Does
  // not block. REQUIRES that both come from NewTimedEvent() of one device, that
  // their work is done, and that `start` is the earlier one; other events may
  // give an error.
  virtual Result<double> SecondsSince(const Event& start) const = 0;
  // For other libraries: a cudaEvent_t, or that of a test's fake.
  virtual void* native() const = 0;
};

// An ordered queue of work on one device. All calls return at once. An error of
// the work itself shows at a later call, or at an Event. NOT thread-safe: one
// thread submits at a time.
class Stream {
 public:
  virtual ~Stream() = default;  // An owned stream waits for its work.
  // Copies bytes. Either side may be memory of the device or from
  // AllocatePinned() or RegisterHost(), or any host memory, which is slower and
  // not asynchronous on every device. Both sides are lent until the work is
  // done.
  virtual Status Copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual Status Fill(void* dst, int byte, std::size_t bytes) = 0;
  virtual Status Record(Event* event) = 0;
  // Work that is submitted from now on begins after `event`'s last Record().
  // Neither other streams nor the host wait.
  virtual Status Wait(const Event& event) = 0;
  // Blocks the calling thread until the stream is empty.
  virtual Status Synchronize() = 0;
  // For kernels and other libraries: a cudaStream_t, or that of a test's fake.
  virtual void* native() const = 0;
};

// Memory of a device, or pinned memory of the host. Freed with the last copy.
// Freeing waits for no work; the owner has to make sure that there is none.
using DeviceMemory = std::shared_ptr<std::byte>;

// A file descriptor (a dma-buf) that stands for some memory of a device, so
// that the drivers of other devices find it. The memory's first byte is
// `offset` bytes into it. It keeps the memory's pages, but not its address: the
// memory must outlive what is made of the descriptor.
struct DmaBuf {
  Fd fd;
  std::uint64_t offset = 0;
};

// The host cannot read the memory of devices.
enum class MemoryOwner : std::uint8_t { kHost, kThisDevice, kOtherDevice };

// Memory, streams and kernels of one device. Implemented in cuda_device.h, and
// in tests by a fake on the CPU whose streams are threads. Thread-safe.
// Outlives everything that it made.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceId id() const = 0;
  virtual std::string description() const = 0;  // "cuda:0 NVIDIA H200".
  // An id of the hardware: the same in all processes that use it, and different
  // from that of any other device on any host. Never 0.
  virtual std::uint64_t unique_id() const = 0;
  virtual const kernels::KernelTable& kernels() const = 0;
  virtual const kernels::ChunkKernelTable& chunk_kernels() const = 0;

  // Returns memory of the device, zeroed and at least 256-byte aligned. `bytes`
  // may be 0. kResourceExhausted says how much was asked for and how much is
  // free.
  virtual Result<DeviceMemory> Allocate(std::size_t bytes) = 0;
  // Returns page-locked memory of the host, which asynchronous copies can
  // reach.
  virtual Result<DeviceMemory> AllocatePinned(std::size_t bytes) = 0;
  // Page-locks existing host memory until the result is destroyed.
  virtual Result<std::shared_ptr<void>> RegisterHost(void* data,
                                                     std::size_t bytes) = 0;
  // Returns a new stream, which does not wait for the default stream. Urgent
  // streams take precedence if the device has priorities.
  virtual Result<std::unique_ptr<Stream>> NewStream(bool urgent) = 0;
  // Wraps the caller's stream (a cudaStream_t; null is the legacy default
  // stream). It is borrowed: neither owned nor synchronised on destruction.
  virtual std::unique_ptr<Stream> Wrap(void* native) = 0;
  virtual Result<std::unique_ptr<Event>> NewEvent() = 0;
  // Returns an event that also keeps the time at which the device passes it,
  // for Event::SecondsSince(). Costs the device a little more than the other.
  virtual Result<std::unique_ptr<Event>> NewTimedEvent() = 0;

  // Returns a descriptor for [data, data + bytes) of an Allocate() of this
  // device. kUnimplemented says what the device, its driver or the build lacks.
  virtual Result<DmaBuf> ExportDmaBuf(const void* data, std::size_t bytes) {
    static_cast<void>(data);
    static_cast<void>(bytes);
    return Status(StatusCode::kUnimplemented,
                  StrCat(description(), " exports no dma-buf"));
  }
  // Work that is submitted from now on sees what other devices, as a network
  // card, have written to this device's memory so far, as completions say. May
  // block for some microseconds. kUnimplemented if the device cannot do that:
  // then other devices must not write to its memory.
  virtual Status FlushRemoteWrites() {
    return Status(
        StatusCode::kUnimplemented,
        StrCat(description(), " cannot wait for writes of other devices"));
  }

  // Runs `body` with the device current for the calling thread, for libraries
  // that look at that. Restores what was current before.
  virtual Status RunCurrent(const std::function<Status()>& body) {
    return body();
  }

  // Returns a function that makes the device current for the thread that calls
  // it, for good. The function may outlive the device.
  virtual std::function<void()> CurrentSetter() const {
    return [] {};
  }

  // Turns what a kernel of kernels() or chunk_kernels() returned into a Status
  // that names the kernel. The error may be that of earlier work; kUnavailable
  // if the device is lost.
  virtual Status KernelStatus(std::string_view kernel, int error) const {
    if (error == 0) return {};
    return {StatusCode::kInternal, StrCat(description(), ": kernel ", kernel,
                                          " failed with device error ", error)};
  }

  // Returns whose memory `pointer` is. Pinned memory is the host's; a null
  // pointer, and one that is not known, count as that, too.
  virtual MemoryOwner OwnerOf(const void* pointer) const = 0;
  bool Owns(const void* pointer) const {
    return OwnerOf(pointer) == MemoryOwner::kThisDevice;
  }
};

}  // namespace gradientflow
