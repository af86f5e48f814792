#include "tests/rdma/fake_fabric.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::fake_verbs {

Fabric::Fabric(const FakeVerbsOptions& chosen)
    : options(chosen),
      manual_(!chosen.stepped           ? nullptr
              : chosen.clock != nullptr ? chosen.clock
                                        : &own_clock_),
      clock_(manual_ != nullptr ? static_cast<const Clock*>(manual_)
                                : &steady_),
      random_(chosen.seed) {
  if (!options.stepped) thread_ = std::thread([this] { Deliveries(); });
}

Fabric::~Fabric() {
  if (thread_.joinable()) {
    {
      const HiddenLock lock(mutex);
      stop_ = true;
      changed_.notify_one();
    }
    thread_.join();
  }
  for (const auto& host : hosts_) {
    DropApi(host.get());
    Destroy(host.get());
  }
}

Host* Fabric::AddHost(const FakeHost& is) {
  auto host = std::make_unique<Host>();
  host->fabric = this;
  host->index = static_cast<int>(hosts_.size());
  host->is = is;
  for (const FakeDevice& wanted : is.devices) {
    auto device = std::make_unique<Device>();
    device->host = host.get();
    device->is = wanted;
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    const std::size_t bytes =
        std::min(wanted.name.size(), sizeof(device->name) - 1);
    std::memcpy(device->name, wanted.name.data(), bytes);
    wanted.sysfs.copy(device->ibdev_path, sizeof(device->ibdev_path) - 1);
    for (const FakePort& port : wanted.ports) {
      std::vector<ibv_gid>& gids = device->gids.emplace_back();
      for (const FakeGid& gid : port.gids) gids.push_back(ToGid(gid.address));
    }
    // A number or key of one device is none of another.
    device->next_number = static_cast<std::uint32_t>(Random() & 0x7FFFFF) + 2;
    device->next_key = static_cast<std::uint32_t>(Random() | 1) * 2;
    host->devices.push_back(std::move(device));
  }
  host->api = MakeApi(host.get());
  hosts_.push_back(std::move(host));
  return hosts_.back().get();
}

Device* Fabric::Find(const std::string& device) {
  for (const auto& host : hosts_) {
    for (const auto& candidate : host->devices) {
      if (candidate->is.name == device) return candidate.get();
    }
  }
  throw std::out_of_range(StrCat("no fake device is called ", device));
}

Pair* Fabric::Find(std::uint64_t identity) {
  const auto found = pairs_.find(identity);
  return found == pairs_.end() ? nullptr : found->second;
}

void Fabric::Know(Pair* pair) {
  pair->identity = ++identities_;
  pairs_[pair->identity] = pair;
}

void Fabric::Forget(Pair* pair) {
  pairs_.erase(pair->identity);
  Changed();
}

void Fabric::Problem(std::string text) { problems_.push_back(std::move(text)); }

// SplitMix64.
std::uint64_t Fabric::Random() {
  std::uint64_t z = (random_ += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

bool Fabric::Chance(double share) {
  return share > 0 && static_cast<double>(Random() >> 11) * 0x1p-53 < share;
}

void Fabric::SetCable(Device* one, Device* other, bool whole) {
  if (one > other) std::swap(one, other);
  std::erase(cut_, std::pair(one, other));
  if (!whole) cut_.emplace_back(one, other);
  Changed();
}

Clock::Time Fabric::Late() {
  const auto most = static_cast<std::uint64_t>(options.late_by.count());
  if (most == 0 || !Chance(options.late_share)) return Clock::Time(0);
  return Clock::Time(Random() % most);
}

void Fabric::Schedule(Event event) {
  event.tie = Random();
  events_.push_back(event);
  std::push_heap(events_.begin(), events_.end());
  if (options.stepped || event.due >= wakes_) return;
  // What is due already is for the caller, who pumps in the end.
  if (event.due <= Now()) return;
  wakes_ = event.due;
  changed_.notify_one();
}

void Fabric::RunNext() {
  std::pop_heap(events_.begin(), events_.end());
  const Event event = events_.back();
  events_.pop_back();
  Pair* const pair = Find(event.pair);
  if (pair == nullptr || !pair->on->host->alive) return;
  switch (event.what) {
    case What::kDeliver:
      pair->moving = false;
      Deliver(pair);
      break;
    case What::kAcknowledge:
      Acknowledge(pair, event.sequence);
      break;
    case What::kLostAck:
      LostAck(pair, event);
      break;
  }
}

void Fabric::Pump() {
  if (options.stepped) return;
  // Time goes on meanwhile, and what is due by now was left to this loop.
  while (!events_.empty() && events_.front().due <= Now()) RunNext();
}

void Fabric::AdvanceTo(Clock::Time time) {
  while (!events_.empty() && events_.front().due <= time) Step();
  if (time > Now()) manual_->Advance(time - Now());
}

bool Fabric::Step() {
  if (events_.empty()) return false;
  const Clock::Time due = events_.front().due;
  if (due > Now()) manual_->Advance(due - Now());
  RunNext();
  return true;
}

void Fabric::Deliveries() {
  const HiddenLock lock(mutex);
  while (!stop_) {
    if (!events_.empty() && events_.front().due <= Now()) {
      RunNext();
      continue;
    }
    if (events_.empty()) {
      wakes_ = Clock::Time::max();
      changed_.wait(mutex);
    } else {
      wakes_ = events_.front().due;
      changed_.wait_until(mutex, std::chrono::steady_clock::time_point(wakes_));
    }
    // Awake, it looks before it sleeps again.
    wakes_ = Clock::Time::min();
  }
}

namespace {

template <typename Objects>
void List(const Host& host, const Objects& objects, const char* what,
          std::vector<std::string>* lines) {
  if (objects.empty()) return;
  lines->push_back(StrCat("host ", host.index, ": ", objects.size(), " ", what,
                          " not destroyed"));
}

}  // namespace

std::vector<std::string> Fabric::Leaks() {
  std::vector<std::string> lines;
  for (const auto& host : hosts_) {
    if (!host->alive) continue;
    if (host->lists != 0) {
      lines.push_back(StrCat("host ", host->index, ": ", host->lists,
                             " lists of devices not freed"));
    }
    List(*host, host->contexts, "open devices", &lines);
    List(*host, host->domains, "protection domains", &lines);
    List(*host, host->regions, "memory regions", &lines);
    List(*host, host->channels, "completion channels", &lines);
    List(*host, host->queues, "completion queues", &lines);
    List(*host, host->pairs, "queue pairs", &lines);
  }
  return lines;
}

}  // namespace gradientflow::fake_verbs
