#include "gradientflow/communicator/driver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

// A thread that drives waits for something, perhaps for a device's work, and a
// device cannot wake a sleeping thread. With a device, the driver polls again
// after this time.
constexpr std::chrono::nanoseconds kDeviceNap = std::chrono::microseconds(50);

}  // namespace

Driver::Driver(const DriverArgs& args, const WatchdogOptions& watchdog)
    : args_(args),
      watchdog_(watchdog, *args.fabric, *args.executor, *args.clock) {
  ListPollables();
}

void Driver::Add(Client* client) {
  clients_.push_back(client);
  ListPollables();
}

void Driver::Remove(const Client* client) {
  std::erase(clients_, client);
  ListPollables();
}

void Driver::ListPollables() {
  pollables_.assign(clients_.begin(), clients_.end());
  if (args_.device != nullptr) pollables_.push_back(this);
  pollables_.insert(
      pollables_.end(),
      {args_.executor, args_.fabric, &args_.executor->ended(), args_.messages});
}

// The executor ends its calls once the fabric has given back their buffers.
void Driver::EndAll() {
  args_.fabric->Poll();
  for (Pollable* one : pollables_) one->Poll();
}

bool Driver::InFlight() const {
  return args_.executor->in_flight() > 0 ||
         (args_.device != nullptr && args_.device->in_flight() > 0);
}

bool Driver::Poll() {
  const bool moved = args_.device->Poll();
  if (moved) ++moves_;
  // A failure on the device must end the job on all ranks.
  const Status failure = args_.device->failure();
  if (!failure.ok()) args_.fabric->Fail(failure);
  if (!args_.fabric->status().ok() && !std::exchange(failure_told_, true) &&
      args_.on_failure) {
    args_.on_failure(args_.fabric->status());
  }
  return moved;
}

// Others may be linking to a rank that waits for nothing itself. After a
// failure the calls in flight have to end, and the device has to hear of it.
bool Driver::Pending() const {
  if (!args_.fabric->status().ok()) {
    return args_.executor->in_flight() > 0 ||
           (args_.device != nullptr && !failure_told_);
  }
  return IsWaiting() || args_.fabric->IsLinking();
}

bool Driver::IsWaiting() const {
  if (!args_.fabric->status().ok()) return false;
  return args_.messages->in_flight() > 0 || InFlight() ||
         std::any_of(clients_.begin(), clients_.end(),
                     [](const Client* client) { return client->Pending(); });
}

void Driver::Block(std::chrono::nanoseconds timeout) {
  if (args_.device != nullptr) timeout = std::min(timeout, kDeviceNap);
  args_.fabric->Wait(timeout);
}

std::string Driver::ProgressText() const {
  const Collective& outer =
      args_.device != nullptr ? *args_.device : *args_.executor;
  std::string text = outer.OldestCall();
  if (!text.empty()) text = "in " + text;
  if (const std::size_t messages = args_.messages->in_flight(); messages > 0) {
    text += StrCat(text.empty() ? "in " : " and in ", messages,
                   " sends and receives of messages");
  }
  for (const Client* client : clients_) {
    const std::string doing = client->Doing();
    if (doing.empty()) continue;
    text += (text.empty() ? "" : "; ") + doing;
  }
  return text.empty() ? "idle, in no collective" : text;
}

void Driver::Tick() {
  for (Client* client : clients_) client->Tick();
  args_.fabric->SetProgressText(ProgressText());
  watchdog_.Tick(IsWaiting(), moves_ + args_.messages->advances());
  if (args_.on_tick) args_.on_tick();
}

}  // namespace gradientflow
