#pragma once

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
  // The collectives on a device's memory; null if there is no device.
  Collective* device = nullptr;
  const Clock* clock = nullptr;
  // Runs at every tick; may be empty.
  std::function<void()> on_tick;
  // Runs once, on the driving thread, when the job has failed; may be empty.
  std::function<void(const Status&)> on_failure;
};

// A rank's work, as Progress asks for it. A round polls these parts:
//
//   clients (the steps of sessions)  start collectives for what became ready
//   the driver itself, if a device   collectives on its memory: copy pieces, or
//                                    look at NCCL; passes failures on
//   executor                         starts segments, and moves those that wait
//                                    for no message
//   fabric                           moves messages, which move segments
//   executor.ended()                 tells who started the calls that ended
//   messages                         match receives from any rank
//
// At every tick a watchdog finds stalls and silent peers.
// NOT thread-safe, except for Wake(): called by the holder of the baton.
class Driver final : public Progress::Work, private Pollable {
 public:
  // A part of the program that starts collectives by itself.
  class Client : public Pollable {
   public:
    virtual ~Client() = default;
    // Returns whether it waits for something, or would find something to do.
    virtual bool Pending() const = 0;
    // Called every 100 ms or so.
    virtual void Tick() = 0;
    // What it is doing, for reports of stalls; empty if nothing.
    virtual std::string Doing() const = 0;
  };

  Driver(const DriverArgs& args, const WatchdogOptions& watchdog);

  // `client` is borrowed until Remove().
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
  void Block(std::chrono::nanoseconds timeout) override;
  void Wake() override { args_.fabric->Wake(); }
  void Tick() override;

 private:
  bool Poll() override;  // The device's.
  void ListPollables();
  bool IsWaiting() const;
  std::string ProgressText() const;

  const DriverArgs args_;
  Watchdog watchdog_;
  std::vector<Client*> clients_;
  std::vector<Pollable*> pollables_;
  std::uint64_t moves_ = 0;  // Progress of the device's collectives.
  bool failure_told_ = false;
};

}  // namespace gradientflow
