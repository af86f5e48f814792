#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "tests/device/fake_device.h"
#include "tests/device/gate.h"

// What a FakeDevice shares with its streams, events and memory. Workers touch
// only the atomics here, and take no mutex except after errors: anything that
// orders the workers of two streams would hide a missing Stream::Wait() from
// the thread sanitizer.
namespace gradientflow::testing {

// Decides when streams may continue: HoldStreams(), lag.
class FakeScheduler {
 public:
  explicit FakeScheduler(FakeLag lag) : lag_(lag) {}

  void Hold() { held_.store(true, std::memory_order_release); }
  void Release();
  // The host has queried an event.
  void Poll();
  // The host waits for a stream, which may run until the end of this.
  void BeginBlocking();
  void EndBlocking() { blocked_.fetch_sub(1, std::memory_order_relaxed); }

  // For a new worker; lives as long as this.
  Gate* NewGate();

  // Called by a worker before a task. `state` is the worker's own random state.
  struct Turn {
    std::uint64_t random;
    std::uint64_t polls_seen;
  };
  Turn NewTurn(std::uint64_t seed) const;
  void AwaitTurn(Gate* gate, Turn* turn) const;

 private:
  bool MayRun(Turn* turn) const;
  void WakeAll();

  const FakeLag lag_;
  std::atomic<bool> held_{false};
  std::atomic<int> blocked_{0};
  std::atomic<std::uint64_t> polls_{0};
  Mutex mutex_;  // For the host's threads only.
  std::deque<Gate> gates_ GF_GUARDED_BY(mutex_);
};

// The known memory. For the host's threads only.
class FakeMemory {
 public:
  enum class Kind { kDevice, kPinned, kPageable };

  explicit FakeMemory(std::size_t limit) : limit_(limit) {}

  std::size_t free_bytes() const;  // On the device.
  // kInvalidArgument if it overlaps known memory.
  Status Add(const void* begin, std::size_t bytes, Kind kind);
  void Remove(const void* begin);
  // kInvalidArgument, naming `what`, if the range lies partly in known memory.
  Result<Kind> Find(const char* what, const void* begin,
                    std::size_t bytes) const;

 private:
  struct Range {
    std::size_t bytes;
    Kind kind;
  };
  const std::size_t limit_;
  mutable Mutex mutex_;
  std::map<std::uintptr_t, Range> ranges_ GF_GUARDED_BY(mutex_);
  std::size_t used_ GF_GUARDED_BY(mutex_) = 0;
};

// The files behind memory that can be exported. For the host's threads only.
class FakeFiles {
 public:
  // Returns zeroed memory of whole pages, or null.
  void* Map(std::size_t bytes);
  // Takes back memory of Map(); null is none.
  void Unmap(const void* begin);
  // Returns a new descriptor of the file in which [data, data + bytes) lies,
  // and where.
  Result<DmaBuf> Export(const void* data, std::size_t bytes) const;

 private:
  struct File {
    int fd = -1;
    std::size_t bytes = 0;
  };
  mutable Mutex mutex_;
  std::map<std::uintptr_t, File> files_ GF_GUARDED_BY(mutex_);
};

struct FakeState {
  explicit FakeState(const FakeOptions& the_options)
      : options(the_options),
        scheduler(the_options.lag),
        memory(the_options.memory_bytes) {}

  // Called at the start of every call: counts it, and returns the error planned
  // for it, or the device's.
  Status Enter(FakeCall call);
  // The device's error, which is permanent.
  Status error() const;
  // Breaks the device: MeansLost() of its error from here on.
  void Fail(const Status& why);

  // Points live as long as this: freeing a point would be ordered after all who
  // had it, which would hide missing order between their streams.
  Point* NewPoint();

  // Called by a worker: returns the failure planned for its next work.
  Status NextWork();

  void PlanCall(FakeCall call, std::uint64_t nth, Status why);
  void PlanWork(std::uint64_t nth, Status why);

  const FakeOptions options;
  FakeScheduler scheduler;
  FakeMemory memory;
  FakeFiles files;
  std::array<std::atomic<std::uint64_t>, kFakeCalls> counts{};
  std::atomic<std::uint64_t> pageable_copies{0};
  std::atomic<std::uint64_t> bus_bytes{0};
  std::atomic<std::uint64_t> streams{0};
  std::atomic<double> host_seconds{0};  // See FakeDevice::SetTime().

 private:
  struct Plan {
    FakeCall call = FakeCall::kAny;
    std::uint64_t left = 0;
    Status why;  // OK: no plan.
  };
  std::atomic<bool> failed_{false};
  std::atomic<bool> call_planned_{false};
  std::atomic<bool> work_planned_{false};
  mutable Mutex mutex_;  // Workers take it only for errors and plans.
  Status error_ GF_GUARDED_BY(mutex_);
  Plan call_plan_ GF_GUARDED_BY(mutex_);
  Plan work_plan_ GF_GUARDED_BY(mutex_);
  Mutex points_mutex_;  // For the host's threads only.
  std::deque<Point> points_ GF_GUARDED_BY(points_mutex_);
};

}  // namespace gradientflow::testing
