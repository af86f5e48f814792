#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/base/buffer.h"
#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "kernels/chunk_kernels.h"
#include "kernels/kernels.h"

namespace gradientflow::testing {

// How far the streams lag behind their host.
enum class FakeLag {
  kNone,    // As fast as they can.
  kRandom,  // Some are always slow, all are sometimes; by seed.
  // As late as possible: a stream does one piece of work each time the host
  // queries any event, and all of its work while the host blocks.
  kLazy,
};

struct FakeOptions {
  DeviceId id = {DeviceId::Kind::kCuda, 0};  // The id that it claims.
  std::uint64_t unique_id = 0;               // 0: one that no other has.
  std::size_t memory_bytes = std::numeric_limits<std::size_t>::max();
  FakeLag lag = FakeLag::kNone;
  std::uint64_t seed = 1;
  // If a kernel gets memory that is neither the device's nor pinned, the device
  // fails, as a GPU does.
  bool check_kernel_memory = true;
  // Memory of the device can be exported. It then consists of whole pages, so
  // that sanitizers do not see a byte past its end.
  bool dma_buf = false;
  // What each copy, fill or kernel takes on the device's clock, in seconds, on
  // streams that have no other number from SetWorkSeconds().
  double work_seconds = 0;
  // What FlushRemoteWrites() does; without it the device cannot flush.
  std::function<Status()> flush = {};
};

// Calls that are counted, and that can be made to fail.
enum class FakeCall {
  kAllocate,
  kAllocatePinned,
  kRegisterHost,
  kNewStream,
  kNewEvent,
  kCopy,
  kFill,
  kRecord,
  kWait,
  kLaunch,
  kQuery,
  kSynchronize,  // An event or a stream.
  kExportDmaBuf,
  kFlushRemoteWrites,
  kSecondsSince,
  // All but kQuery, whose number depends on time, and kSecondsSince, whose
  // failure only costs a statistic.
  kAny,
};
inline constexpr int kFakeCalls = 16;

struct FakeState;
class FakeQueue;

// A Device on the CPU for tests. Each stream is a thread that works through a
// queue, so work is as asynchronous as on a GPU and streams run side by side.
// If two streams touch the same memory without a Wait() between them, that is a
// data race, which the thread sanitizer sees whichever came first. Device
// memory is ordinary memory: nothing can stop the host from reading it, but
// kernels and copies are restricted to the ranges that were handed out. Pinned
// memory (the beginning of it, if it is large) is filled with kFakePoison at
// first. Thread-safe as Device is.
//
// The kernels are the CPU's, put in the queue of the stream; types and counts
// are checked at the call. native() is for these tables. A null stream is the
// default stream of the only FakeDevice; with several devices it is refused.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(const FakeOptions& options = FakeOptions());
  ~FakeDevice() override;  // Waits for the default stream.
  // The same device once more, as another call of OpenCudaDevice() gives it.
  // This one outlives the result.
  std::unique_ptr<FakeDevice> Again() const;
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  DeviceId id() const override;
  std::string description() const override;  // "fake:0".
  std::uint64_t unique_id() const override { return unique_id_; }
  const kernels::KernelTable& kernels() const override;
  const kernels::ChunkKernelTable& chunk_kernels() const override;
  Result<DeviceMemory> Allocate(std::size_t bytes) override;
  Result<DeviceMemory> AllocatePinned(std::size_t bytes) override;
  Result<std::shared_ptr<void>> RegisterHost(void* data,
                                             std::size_t bytes) override;
  Result<std::unique_ptr<Stream>> NewStream(bool urgent) override;
  // `native` belongs to a stream of this device; otherwise its calls fail.
  std::unique_ptr<Stream> Wrap(void* native) override;
  Result<std::unique_ptr<Event>> NewEvent() override;
  Result<std::unique_ptr<Event>> NewTimedEvent() override;
  Result<DmaBuf> ExportDmaBuf(const void* data, std::size_t bytes) override;
  Status FlushRemoteWrites() override;
  Status RunCurrent(const std::function<Status()>& body) override;
  std::function<void()> CurrentSetter() const override;
  // Like a GPU: a launch that finds the device broken reports what broke it.
  Status KernelStatus(std::string_view kernel, int error) const override;
  // Knows the memory of one other device, the one given to SetOther().
  MemoryOwner OwnerOf(const void* pointer) const override;
  // Null: there is none. `other` outlives this device. Not during calls.
  void SetOther(const FakeDevice* other) { other_ = other; }

  // Returns id().index of the device current for the calling thread, or -1.
  static int CurrentOfThread();

  // Work that is submitted from here on does not start before ReleaseStreams().
  // Calls that block on the host meanwhile block until then.
  void HoldStreams();
  void ReleaseStreams();
  // The same for one stream of this device; calling the result releases it.
  std::function<void()> HoldStream(Stream* stream);

  // The device's clock is the test's: work takes as long as is said, and begins
  // when the work before it on its stream, what it waits for and the time of
  // its submission let it. How long anything really takes does not matter.
  // From here on, work on this stream takes so long.
  void SetWorkSeconds(Stream* stream, double seconds);
  // Work that is submitted from here on begins at this time or later.
  void SetTime(double seconds);

  // Calls since the device was made. kLaunch counts kernels.
  std::uint64_t count(FakeCall call) const;
  // Copies with a side that is neither the device's nor pinned, which would
  // block the host on a GPU.
  std::uint64_t pageable_copies() const;
  // Bytes of copies between the device and pinned memory, in either direction.
  std::uint64_t bus_bytes() const;

  // The nth call of this kind from here on (0: the next) only fails, once. A
  // launch fails with kFakeLaunchError.
  void FailCall(FakeCall call, std::uint64_t nth, Status why);
  // The nth copy, fill or kernel from here on does not run, and breaks the
  // device for good: all later calls and queries return kUnavailable with the
  // message of `why`, no later work runs, and events count as passed.
  void FailWork(std::uint64_t nth, Status why);

 private:
  FakeDevice(std::uint64_t unique_id, std::shared_ptr<FakeState> state,
             std::shared_ptr<FakeQueue> default_queue);

  const std::uint64_t unique_id_;
  const bool again_;
  const std::shared_ptr<FakeState> state_;
  const std::shared_ptr<FakeQueue> default_queue_;
  std::atomic<const FakeDevice*> other_{nullptr};
  Mutex mutex_;
  // The queues that Wrap() may find.
  std::vector<std::weak_ptr<FakeQueue>> queues_ GF_GUARDED_BY(mutex_);
};

inline constexpr int kFakeLaunchError = 719;
inline constexpr int kFakePoison = 0xCD;

}  // namespace gradientflow::testing
