#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradientflow/base/clock.h"
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

// One round of a rank's work, as Progress asks for it:
//
//   clients (the steps of sessions)  start collectives for what became ready
//   device collectives               copy pieces, or look at NCCL
//   executor                         moves segments, and polls the fabric
//   messages                         match receives from any rank
//   watchdog, at every tick          finds stalls and silent peers
//
// NOT thread-safe, except for Wake(): called by the holder of the baton.
class Driver final : public Progress::Work {
 public:
  // A part of the program that starts collectives by itself.
  class Client {
   public:
    virtual ~Client() = default;
    // Does what can be done without waiting. Returns whether anything moved.
    virtual bool Poll() = 0;
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
  // Returns whether collectives of any kind are under way.
  bool InFlight() const;

  // From Progress::Work.
  bool Poll() override;
  bool Pending() const override;
  void Block(std::chrono::nanoseconds timeout) override;
  void Wake() override { args_.fabric->Wake(); }
  void Tick() override;

 private:
  bool IsWaiting() const;
  std::string ProgressText() const;

  const DriverArgs args_;
  Watchdog watchdog_;
  std::vector<Client*> clients_;
  std::uint64_t moves_ = 0;  // Progress of the device's collectives.
  bool failure_told_ = false;
};

}  // namespace gradientflow
