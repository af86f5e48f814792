#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/pollable.h"
#include "gradientflow/collectives/executor.h"
#include "gradientflow/communicator/messages.h"
#include "gradientflow/communicator/progress.h"
#include "gradientflow/communicator/watchdog.h"
#include "transports/fabric.h"

namespace gradientflow {

// What the driver drives. All are borrowed, and outlive it.
struct DriverArgs {
  Fabric* fabric = nullptr;
  Executor* executor = nullptr;
  Messages* messages = nullptr;
  // Where users' calls go: the executor, or the device path before it.
  Collective* outer = nullptr;
  const Clock* clock = nullptr;
  // Runs at every tick; may be empty.
  std::function<void()> on_tick;
};

// A rank's work, as Progress asks for it. A round polls these parts:
//
//   clients: steps of sessions       start collectives for what became ready
//            the device path         collectives on a device's memory: copies
//                                    pieces, or looks at NCCL
//   executor                         starts segments, and moves those that wait
//                                    for no message
//   fabric                           moves messages, which move segments
//   executor.ended()                 runs the completions of ended calls
//   messages                         match receives from any rank
//
// At every tick a watchdog finds stalls and silent peers.
// NOT thread-safe, except for Wake(): called by the holder of the baton.
class Driver final : public Progress::Work {
 public:
  // A part of the program that starts collectives by itself.
  class Client : public Pollable {
   public:
    virtual ~Client() = default;
    // Returns whether it waits for something, or would find something to do.
    virtual bool Pending() const = 0;
    // Called every 100 ms or so.
    virtual void Tick() {}
    // Returns what it is doing, for reports of stalls; empty if nothing, or if
    // the calls in flight show that.
    virtual std::string Doing() const { return ""; }
    // Returns whether it has to be polled to learn that the job has failed.
    virtual bool HasToHear() const { return false; }
    // Grows with progress that is neither that of a message nor of a segment.
    virtual std::uint64_t moves() const { return 0; }
    // Returns the longest time that the thread that drives may sleep, if that
    // thread is not woken by what this client waits for. Nothing has moved for
    // `idle`.
    virtual std::chrono::nanoseconds Nap(std::chrono::nanoseconds idle) const {
      static_cast<void>(idle);
      return std::chrono::nanoseconds::max();
    }
  };

  Driver(const DriverArgs& args, const WatchdogOptions& watchdog);

  // `client` is borrowed until Remove(). It is polled before those that were
  // added before it, to which it may give work.
  void Add(Client* client);
  void Remove(const Client* client);
  // Tells the other ranks of a failure, and ends what is in flight with it,
  // except what a device is still busy with. REQUIRES that the fabric has
  // failed.
  void EndAll();
  // Returns whether collectives of any kind are under way.
  bool InFlight() const;

  // From Progress::Work.
  std::span<Pollable* const> pollables() const override { return pollables_; }
  bool Pending() const override;
  void Block(std::chrono::nanoseconds timeout,
             std::chrono::nanoseconds idle) override;
  void Wake() override { args_.fabric->Wake(); }
  void Tick() override;

 private:
  void ListPollables();
  bool IsWaiting() const;
  std::string ProgressText() const;

  const DriverArgs args_;
  Watchdog watchdog_;
  std::vector<Client*> clients_;
  std::vector<Pollable*> pollables_;
};

}  // namespace gradientflow
