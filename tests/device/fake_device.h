#pragma once

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

// How far the streams are behind their host.
enum class FakeLag {
  kNone,    // As fast as they can.
  kRandom,  // Some are slow, and all now and then, by the seed.
  // As late as possible: a stream does one piece of work each time the host
  // looks at any event, and all that there is while the host blocks.
  kLazy,
};

struct FakeOptions {
  DeviceId id = {DeviceId::Kind::kCuda, 0};  // What it passes itself off as.
  std::uint64_t unique_id = 0;  // 0: one that no other FakeDevice has.
  std::size_t memory_bytes = std::numeric_limits<std::size_t>::max();
  FakeLag lag = FakeLag::kNone;
  std::uint64_t seed = 1;
  // A kernel that is given memory which is neither the device's nor pinned
  // makes the device fail, as a GPU does.
  bool check_kernel_memory = true;
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
  kSynchronize,  // Of an event or a stream.
  kAny,          // All of them but kQuery, whose number depends on the time.
};
inline constexpr int kFakeCalls = 13;

struct FakeState;
class FakeQueue;

// A Device on the CPU for tests. Each stream is a thread that works through a
// queue, so work is as asynchronous as on a GPU, streams run side by side, and
// two streams that touch the same memory without a Wait() between them are a
// data race that the thread sanitizer sees, whichever came first. Device
// memory is ordinary memory: the host could read it, which nothing can trap;
// but kernels and copies are held to the ranges that were handed out. Pinned
// memory comes filled with kFakePoison. Thread-safe as Device is.
//
// The kernels are the CPU's, put in the stream's queue; types and counts are
// checked at the call. native() is for these tables. A null stream is the
// default stream of the one FakeDevice there is; with several it is refused.
class FakeDevice final : public Device {
 public:
  explicit FakeDevice(const FakeOptions& options = FakeOptions());
  ~FakeDevice() override;  // Waits for the default stream.
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
  // `native` is that of a stream of this device; calls on any other fail.
  std::unique_ptr<Stream> Wrap(void* native) override;
  Result<std::unique_ptr<Event>> NewEvent() override;
  Status RunCurrent(const std::function<Status()>& body) override;
  std::function<void()> CurrentSetter() const override;
  // As a GPU does: a launch that finds the device broken says what broke it.
  Status KernelStatus(std::string_view kernel, int error) const override;
  bool Owns(const void* pointer) const override;

  // id().index of the device that is current for the calling thread, or -1.
  static int CurrentOfThread();

  // Work that is submitted from now on does not begin before ReleaseStreams().
  // Whatever blocks on the host meanwhile, blocks until then.
  void HoldStreams();
  void ReleaseStreams();
  // The same for one stream of this device; call the result once, to release.
  std::function<void()> HoldStream(Stream* stream);

  // Since the device was made. kLaunch counts kernels.
  std::uint64_t count(FakeCall call) const;
  // Copies with a side that is neither the device's nor pinned: those block
  // the host on a GPU.
  std::uint64_t pageable_copies() const;

  // The nth call of this kind from now (0: the next) does nothing but fail,
  // once. A launch fails with kFakeLaunchError.
  void FailCall(FakeCall call, std::uint64_t nth, Status why);
  // The nth copy, fill or kernel that runs from now does not, and the device
  // is broken for good: all later calls and queries say why, no later work
  // runs, events are passed.
  void FailWork(std::uint64_t nth, Status why);

 private:
  const std::uint64_t unique_id_;
  const std::shared_ptr<FakeState> state_;
  const std::shared_ptr<FakeQueue> default_queue_;
  Mutex mutex_;
  // Those that Wrap() may find.
  std::vector<std::weak_ptr<FakeQueue>> queues_ GF_GUARDED_BY(mutex_);
};

inline constexpr int kFakeLaunchError = 719;
inline constexpr int kFakePoison = 0xCD;

}  // namespace gradientflow::testing
