#include "tests/rdma/fake_verbs.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_fabric.h"

namespace gradientflow {

using fake_verbs::Device;
using fake_verbs::Fabric;
using fake_verbs::HiddenLock;
using fake_verbs::Host;
using fake_verbs::Pair;

FakeHost UsualHost(int index) {
  FakePort port;
  const std::string link_local = StrCat("fe80::", index + 1);
  const std::string address = StrCat("10.9.0.", index + 1);
  port.gids = {{link_local, IBV_GID_TYPE_ROCE_V1},
               {link_local, IBV_GID_TYPE_ROCE_V2},
               {address, IBV_GID_TYPE_ROCE_V1}};
  // As on machines where interfaces have come and gone.
  for (int i = 0; i < index % 3; ++i) port.gids.emplace_back();
  port.gids.push_back({address, IBV_GID_TYPE_ROCE_V2});
  FakeDevice device;
  device.name = StrCat("fake", index);
  device.ports = {port};
  FakeHost host;
  host.devices = {device};
  return host;
}

FakeVerbs::FakeVerbs(int hosts, const FakeVerbsOptions& options)
    : fabric_(std::make_unique<Fabric>(options)) {
  for (int i = 0; i < hosts; ++i) AddHost(UsualHost(i));
}

FakeVerbs::~FakeVerbs() {
  for (const std::string& leak : Leaks()) ADD_FAILURE() << leak;
  for (const std::string& problem : TakeProblems()) ADD_FAILURE() << problem;
}

int FakeVerbs::AddHost(const FakeHost& host) {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->AddHost(host)->index;
}

std::shared_ptr<const VerbsApi> FakeVerbs::api(int host) const {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->At(host)->api;
}

FakeVerbsStats FakeVerbs::stats(int host) const {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->At(host)->stats;
}

std::uint64_t FakeVerbs::BytesOf(const std::string& device) const {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->Find(device)->posted_bytes;
}

std::vector<std::string> FakeVerbs::Leaks() const {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->Leaks();
}

std::vector<std::string> FakeVerbs::TakeProblems() {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->TakeProblems();
}

void FakeVerbs::Advance(Clock::Time by) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->AdvanceTo(fabric_->Now() + by);
}

bool FakeVerbs::Step() {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->Step();
}

std::size_t FakeVerbs::Pending() const {
  const HiddenLock lock(fabric_->mutex);
  return fabric_->pending();
}

Clock::Time FakeVerbs::Now() const { return fabric_->Now(); }

void FakeVerbs::FailCall(int host, std::string_view call, int n, int error,
                         int times) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->At(host)->faults.insert({std::string(call), {n, error, times}});
}

void FakeVerbs::FailMessage(int host, int n, ibv_wc_status status) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->At(host)->message_faults.emplace_back(n, status);
}

bool FakeVerbs::ForgetFaults(int host) {
  const HiddenLock lock(fabric_->mutex);
  Host* const of = fabric_->At(host);
  const bool any = !of->faults.empty() || !of->message_faults.empty();
  of->faults.clear();
  of->message_faults.clear();
  return any;
}

void FakeVerbs::SetPort(const std::string& device, int port, bool active) {
  const HiddenLock lock(fabric_->mutex);
  Device* const found = fabric_->Find(device);
  found->is.ports.at(static_cast<std::size_t>(port) - 1).active = active;
  fabric_->Changed();
  fabric_->Raise(found, active ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR,
                 port);
}

void FakeVerbs::SetGid(const std::string& device, int port, int index,
                       const FakeGid& gid) {
  const HiddenLock lock(fabric_->mutex);
  Device* const found = fabric_->Find(device);
  const auto of = static_cast<std::size_t>(port) - 1;
  const auto at = static_cast<std::size_t>(index);
  std::vector<FakeGid>& gids = found->is.ports.at(of).gids;
  gids.resize(std::max(gids.size(), at + 1));
  found->gids.at(of).resize(gids.size());
  gids[at] = gid;
  found->gids[of][at] = fake_verbs::ToGid(gid.address);
  fabric_->Changed();
  fabric_->Raise(found, IBV_EVENT_GID_CHANGE, port);
}

void FakeVerbs::SetCable(const std::string& one, const std::string& other,
                         bool whole) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->SetCable(fabric_->Find(one), fabric_->Find(other), whole);
}

void FakeVerbs::RemoveDevice(const std::string& device) {
  const HiddenLock lock(fabric_->mutex);
  Device* const found = fabric_->Find(device);
  found->removed = true;
  fabric_->Changed();
  fabric_->Raise(found, IBV_EVENT_DEVICE_FATAL, 0);
  std::vector<Pair*> pairs;
  for (const auto& [number, pair] : found->pairs) pairs.push_back(pair);
  for (Pair* const pair : pairs) fabric_->Break(pair);
}

void FakeVerbs::KillHost(int host) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->At(host)->alive = false;
  fabric_->Changed();
}

void FakeVerbs::Inject(const std::string& device, ibv_event_type event,
                       int port) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->Raise(fabric_->Find(device), event, port);
}

void FakeVerbs::SetMemlock(int host, std::size_t bytes) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->At(host)->is.memlock_bytes = bytes;
}

void FakeVerbs::FlushGpus(const std::function<bool(const void*)>& of) {
  const HiddenLock lock(fabric_->mutex);
  fabric_->FlushGpus(of);
}

}  // namespace gradientflow
