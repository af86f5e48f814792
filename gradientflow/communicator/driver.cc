#include "gradientflow/communicator/driver.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

Driver::Driver(const DriverArgs& args, const WatchdogOptions& watchdog)
    : args_(args),
      watchdog_(watchdog, *args.fabric, *args.executor, *args.clock) {
  ListPollables();
}

void Driver::Add(Client* client) {
  clients_.insert(clients_.begin(), client);
  ListPollables();
}

void Driver::Remove(const Client* client) {
  std::erase(clients_, client);
  ListPollables();
}

void Driver::ListPollables() {
  pollables_.assign(clients_.begin(), clients_.end());
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
  return args_.executor->in_flight() > 0 || args_.outer->in_flight() > 0;
}

// Others may be linking to a rank that waits for nothing itself. After a
// failure the calls in flight have to end, and clients may have to hear of it.
bool Driver::Pending() const {
  if (!args_.fabric->status().ok()) {
    return args_.executor->in_flight() > 0 ||
           std::any_of(
               clients_.begin(), clients_.end(),
               [](const Client* client) { return client->HasToHear(); });
  }
  return IsWaiting() || args_.fabric->IsLinking();
}

bool Driver::IsWaiting() const {
  if (!args_.fabric->status().ok()) return false;
  return args_.messages->in_flight() > 0 || InFlight() ||
         std::any_of(clients_.begin(), clients_.end(),
                     [](const Client* client) { return client->Pending(); });
}

void Driver::Block(std::chrono::nanoseconds timeout,
                   std::chrono::nanoseconds idle) {
  for (const Client* client : clients_) {
    timeout = std::min(timeout, client->Nap(idle));
  }
  args_.fabric->Wait(timeout);
}

std::string Driver::ProgressText() const {
  std::string text = args_.outer->OldestCall();
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
  std::uint64_t moves = args_.messages->advances();
  for (Client* client : clients_) {
    client->Tick();
    moves += client->moves();
  }
  args_.fabric->SetProgressText(ProgressText());
  watchdog_.Tick(IsWaiting(), moves);
  if (args_.on_tick) args_.on_tick();
}

}  // namespace gradientflow
