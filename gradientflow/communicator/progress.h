#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/communicator/baton.h"
#include "gradientflow/communicator/completions.h"

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

  // `spin`: how long to poll in vain before blocking. `completions` are run by
  // whoever drives, without the baton. All outlive it.
  Progress(Work& work, const Clock& clock, std::chrono::nanoseconds spin,
           Completions& completions);
  ~Progress();  // Stop(); REQUIRES that no caller drives.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Ends the progress thread, which may be running completions. From here only
  // callers drive. REQUIRES that this is not that thread; once or more.
  void Stop();

  // Any thread: there is new work. Wait-free, but for waking a sleeper.
  void Notify();

  // Drives until `done` returns true. Any thread, several at a time: one
  // drives, the others sleep. `done` runs with the baton held, on any thread
  // that drives, and not again once it has returned true.
  void Drive(const std::function<bool()>& done);
  // As Drive(), until `deadline` at the latest, to a tick (100 ms) or so.
  // Returns whether `done` has returned true.
  bool DriveUntil(const std::function<bool()>& done, Clock::Time deadline);

  // Runs `task` with the baton held; it must not block.
  void Do(const std::function<void()>& task);

 private:
  // A thread that sleeps in DriveUntil(), while another one drives.
  struct Sleeper {
    const std::function<bool()>* done;
    std::atomic<std::uint32_t> word{0};  // kAsleep, kDone or kDrive.
  };

  void Run();
  void RunWhilePending() GF_REQUIRES(baton_);
  void Step(Clock::Time* idle_since) GF_REQUIRES(baton_);
  // `callers`: those that this thread counts for.
  void Complete(int callers) GF_REQUIRES(baton_);
  void WakeSleepers() GF_REQUIRES(baton_);
  void HandOver() GF_REQUIRES(baton_);
  bool Sleep(const std::function<bool()>& done, Clock::Time deadline)
      GF_RELEASE(baton_);
  bool hint() const { return signal_.load() != served_.load(); }
  void Served() GF_REQUIRES(baton_);
  void Park();
  void WakeParked();
  void Take() GF_ACQUIRE(baton_);
  void Release() GF_RELEASE(baton_);
  void Leave();

  Work& work_;
  const Clock& clock_;
  const std::chrono::nanoseconds spin_;
  Completions& completions_;
  Baton baton_;
  std::vector<Sleeper*> sleepers_ GF_GUARDED_BY(baton_);
  // Some thread drives, and has let the baton go for a moment.
  bool driven_ GF_GUARDED_BY(baton_) = false;
  std::atomic<int> callers_{0};       // In Drive() or Do().
  std::atomic<bool> blocked_{false};  // The holder is in Block().
  std::atomic<bool> parked_{false};   // The progress thread sleeps.
  // Counts what was told. There may be work in flight while it is not
  // `served_`, its value before a poll that left none.
  std::atomic<std::uint32_t> signal_{0};
  std::atomic<std::uint32_t> served_{0};
  std::uint32_t polled_ GF_GUARDED_BY(baton_) = 0;  // Before the last poll.
  std::atomic<bool> stop_{false};
  Clock::Time last_tick_ GF_GUARDED_BY(baton_){};
  std::thread thread_;
};

}  // namespace gradientflow
