#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/pollable.h"
#include "gradientflow/communicator/baton.h"
#include "gradientflow/communicator/completions.h"

namespace gradientflow {

// Decides which thread drives. One thread at a time holds the baton. A caller
// that waits drives by itself, so that a blocking call costs no switch of
// threads. While work is in flight and no caller waits (during backward), the
// progress thread drives. With nothing in flight it sleeps, except for a tick
// every 100 ms.
class Progress {
 public:
  // What is driven. All methods but Wake() are called by the holder of the
  // baton.
  class Work {
   public:
    virtual ~Work() = default;
    // What a round polls, in this order. The list may change between rounds.
    virtual std::span<Pollable* const> pollables() const = 0;
    // Returns whether something is in flight.
    virtual bool Pending() const = 0;
    // Sleeps until something may have moved. Nothing has moved for `idle`.
    virtual void Block(std::chrono::nanoseconds timeout,
                       std::chrono::nanoseconds idle) = 0;
    // May be called on any thread. Ends the current Block(), or the next.
    virtual void Wake() = 0;
    virtual void Tick() = 0;  // Called every 100 ms or so.
  };

  // `spin` is how long to poll without result before blocking. The driving
  // thread runs the `completions`, without the baton. All arguments outlive
  // this object.
  Progress(Work& work, const Clock& clock, std::chrono::nanoseconds spin,
           Completions& completions);
  ~Progress();  // Calls Stop(). REQUIRES that no caller drives.
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Ends the progress thread, which may be running completions. From here on
  // only callers drive. REQUIRES that this is another thread. May be called
  // again.
  void Stop();

  // Says that there is new work. May be called on any thread. Wait-free, unless
  // a thread has to be woken.
  void Notify();

  // Drives until `done` returns true. May be called on several threads at a
  // time: one of them drives, the others sleep. `done` runs with the baton
  // held, on whichever thread drives, and not again once it has returned true.
  void Drive(const std::function<bool()>& done);
  // The same, but until `deadline` at the latest, to a tick (100 ms) or so.
  // Returns whether `done` has returned true.
  bool DriveUntil(const std::function<bool()>& done, Clock::Time deadline);

  // Runs `task` with the baton held. `task` must not block.
  void Do(const std::function<void()>& task);

 private:
  // A thread that sleeps in DriveUntil() while another thread drives.
  struct Sleeper {
    const std::function<bool()>* done;
    std::atomic<std::uint32_t> word{0};  // kAsleep, kDone or kDrive.
  };

  void Run();
  void RunWhilePending() GF_REQUIRES(baton_);
  void Round(Clock::Time* idle_since) GF_REQUIRES(baton_);
  // `callers` is how many of callers_ this thread counts for.
  void Complete(int callers) GF_REQUIRES(baton_);
  void WakeSleepers() GF_REQUIRES(baton_);
  void HandOver() GF_REQUIRES(baton_);
  bool Sleep(const std::function<bool()>& done, Clock::Time deadline)
      GF_RELEASE(baton_);
  bool hint() const { return signal_.load() != served_.load(); }
  void NoteIfServed() GF_REQUIRES(baton_);
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
  // Some thread drives, and has released the baton for a moment.
  bool driven_ GF_GUARDED_BY(baton_) = false;
  std::atomic<int> callers_{0};       // In Drive() or Do().
  std::atomic<bool> blocked_{false};  // The holder is in Block().
  std::atomic<bool> parked_{false};   // The progress thread sleeps.
  // Counts the Notify() calls. While it differs from served_, its value before
  // a poll that left nothing pending, there may be work.
  std::atomic<std::uint32_t> signal_{0};
  std::atomic<std::uint32_t> served_{0};
  // signal_ before the last poll.
  std::uint32_t polled_ GF_GUARDED_BY(baton_) = 0;
  std::atomic<bool> stop_{false};
  Clock::Time last_tick_ GF_GUARDED_BY(baton_){};
  std::thread thread_;
};

}  // namespace gradientflow
