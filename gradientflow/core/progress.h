#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/mutex.h"

namespace gradientflow {

// Who drives the engine. One thread at a time holds the baton: a caller that
// waits drives by itself, so that a blocking call costs no switch of threads;
// when work is in flight and no caller waits (during backward), the progress
// thread does. With nothing in flight it sleeps but for a tick.
class Progress {
 public:
  // What is driven. All but Wake() are called by the baton's holder.
  class Work {
   public:
    virtual ~Work() = default;
    virtual bool Poll() = 0;           // Never blocks. Whether anything moved.
    virtual bool Pending() const = 0;  // Something is in flight.
    virtual void Block(std::chrono::nanoseconds timeout) = 0;
    virtual void Wake() = 0;  // Any thread: ends a Block(), now or next.
    virtual void Tick() = 0;  // Every 100 ms or so.
  };

  // `spin`: how long to poll in vain before blocking.
  Progress(Work& work, const Clock& clock, std::chrono::nanoseconds spin);
  ~Progress();  // Stops the thread; REQUIRES that no caller drives.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Any thread: there is new work. Wait-free, but for waking a sleeper.
  void Notify();

  // Drives until `done` returns true. Any thread, several at a time; `done`
  // runs with the baton held.
  void Drive(const std::function<bool()>& done);

  // Runs `task` with the baton held; it must not block.
  void Do(const std::function<void()>& task);

 private:
  void Run();
  void RunWhilePending() GF_REQUIRES(baton_);
  // `callers`: those that the driver itself counts for.
  void Step(Clock::Time* idle_since, int callers) GF_REQUIRES(baton_);
  void Park();
  void WakeParked();
  void Take() GF_ACQUIRE(baton_);
  void Release() GF_RELEASE(baton_);

  Work& work_;
  const Clock& clock_;
  const std::chrono::nanoseconds spin_;
  Mutex baton_;
  std::atomic<int> callers_{0};       // Want the baton, or hold it.
  std::atomic<bool> hint_{false};     // There may be work in flight.
  std::atomic<bool> blocked_{false};  // The holder is in Block().
  std::atomic<bool> parked_{false};   // The progress thread sleeps.
  std::atomic<std::uint32_t> signal_{0};
  std::atomic<bool> stop_{false};
  Clock::Time last_tick_ GF_GUARDED_BY(baton_){};
  std::thread thread_;
};

}  // namespace gradientflow
