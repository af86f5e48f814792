#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "tests/device/fake_queue.h"
#include "tests/device/fake_state.h"

namespace gradientflow::testing {

class FakeEvent final : public Event {
 public:
  FakeEvent(std::shared_ptr<FakeState> state, bool timed);

  Result<bool> Query() const override;
  Status Synchronize() const override;
  Result<double> SecondsSince(const Event& start) const override;
  // A pointer to this; only for tests to compare.
  void* native() const override { return const_cast<FakeEvent*>(this); }

  const FakeState* state() const { return state_.get(); }
  Point* point() const;  // The last recorded one, or null.
  void set_point(Point* point);

 private:
  const std::shared_ptr<FakeState> state_;
  const bool timed_;
  mutable Mutex mutex_;  // For the host's threads only.
  Point* point_ GF_GUARDED_BY(mutex_) = nullptr;
};

class FakeStream final : public Stream {
 public:
  // `queue` is null for an unknown native stream; all calls then fail.
  FakeStream(std::shared_ptr<FakeQueue> queue, bool owned);
  ~FakeStream() override;

  Status Copy(void* dst, const void* src, std::size_t bytes) override;
  Status Fill(void* dst, int byte, std::size_t bytes) override;
  Status Record(Event* event) override;
  Status Wait(const Event& event) override;
  Status Synchronize() override;
  void* native() const override { return queue_.get(); }

 private:
  Status Enter(FakeCall call);
  Status CheckCopy(const void* dst, const void* src, std::size_t bytes);

  const std::shared_ptr<FakeQueue> queue_;
  const bool owned_;
  // Every call changes it without a lock, so that the thread sanitizer sees
  // threads that submit at the same time.
  std::uint64_t calls_ = 0;
};

}  // namespace gradientflow::testing
