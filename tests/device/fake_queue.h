#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "gradientflow/base/status.h"
#include "tests/device/fake_state.h"
#include "tests/device/gate.h"

namespace gradientflow::testing {

// The next work of a FakeDevice's stream; each part may be absent.
struct FakeTask {
  Point* wait_for = nullptr;
  std::function<Status()> run;  // Not called once the device has failed.
  Point* finish = nullptr;
  // On the device's clock; set by Push().
  double not_before = 0;
  double seconds = 0;
};

// A thread and its remaining work, in order. native() of its streams.
class FakeQueue {
 public:
  explicit FakeQueue(std::shared_ptr<FakeState> state);
  ~FakeQueue();  // REQUIRES: Stop() was called.
  FakeQueue(const FakeQueue&) = delete;
  FakeQueue& operator=(const FakeQueue&) = delete;

  FakeState& state() { return *state_; }

  // Any thread. kFailedPrecondition after Stop().
  Status Push(FakeTask task);
  // What the work takes that is pushed from here on. Any thread.
  void SetWorkSeconds(double seconds) { work_seconds_ = seconds; }
  // Blocks until all work that was pushed is done.
  Status Drain();
  // The same, and ends the thread. May be called once.
  void Stop();

  // The queue behind a native stream. For null: the default queue of the only
  // device. Returns null if there is none.
  static FakeQueue* Of(void* native);
  // Makes this the default queue of a device, until Stop().
  void BecomeDefault();

 private:
  struct Node {
    FakeTask task;
    bool stop = false;
    std::atomic<Node*> next{nullptr};
  };

  void Append(std::unique_ptr<Node> node);
  Node* Next();
  void Run();
  void Do(FakeTask* task);

  const std::shared_ptr<FakeState> state_;
  Gate* const gate_;
  std::atomic<bool> stopped_{false};
  // A list with any number of producers and one consumer. The consumer never
  // writes what producers read, so nothing that it does is ordered before a
  // later push.
  std::atomic<Node*> last_;
  Node* first_;  // The worker's: already done.
  FakeScheduler::Turn turn_;
  std::atomic<double> work_seconds_;
  double now_ = 0;  // The worker's: the device's time.
  std::thread thread_;
};

}  // namespace gradientflow::testing
