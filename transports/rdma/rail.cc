#include "transports/rdma/rail.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"
#include "transports/rdma/queue_pair.h"

namespace gradientflow {
namespace {

constexpr int kTakenAtOnce = 16;
// So that no rail starves the sockets.
constexpr int kTakenPerPoll = 64;
// What a rank copies at a time, and how much of it may be under way.
constexpr int kSlots = 16;
constexpr std::size_t kSlotBytes = std::size_t{256} << 10;
// Events are acknowledged by the batch, since that takes a lock.
constexpr unsigned kAcknowledgedAtOnce = 32;
enum : std::uint64_t { kChannelCookie = 0, kAsyncCookie = 1 };

Status SetNonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0) {
    return Status();
  }
  return Status(StatusCode::kInternal, StrCat("fcntl: ", std::strerror(errno)));
}

// Those that the library owns, which a child must not keep: its copies would
// keep queue pairs alive when this process has died.
void Register(int fd) {
  if (fd >= 0) CloseInForks(fd);
}
void Unregister(int fd) {
  if (fd >= 0) KeepInForks(fd);
}

ibv_device* Find(ibv_device** devices, int count, std::string_view name) {
  for (int i = 0; i < count; ++i) {
    if (name == devices[i]->name) return devices[i];
  }
  return nullptr;
}

}  // namespace

Rail::Rail(RailArgs args)
    : args_(std::move(args)),
      name_(StrCat(args_.choice.device, ":", args_.choice.port.number)) {}

Result<std::shared_ptr<Rail>> Rail::Open(RailArgs args) {
  std::shared_ptr<Rail> rail(new Rail(std::move(args)));
  GF_RETURN_IF_ERROR(rail->Init());
  return rail;
}

Status Rail::Failure(const std::string& call, int error) const {
  const StatusCode code = error == ENOMEM || error == EMFILE
                              ? StatusCode::kResourceExhausted
                              : StatusCode::kUnavailable;
  return Status(code, StrCat(name_, ": ", call, ": ", std::strerror(error),
                             error == ENOMEM ? MemlockRemedy() : ""));
}

Status Rail::Init() {
  const VerbsApi& verbs = *args_.verbs;
  int count = 0;
  ibv_device** const devices = verbs.get_device_list(&count);
  if (devices == nullptr) return Failure("no list of devices", errno);
  ibv_device* const device = Find(devices, count, args_.choice.device);
  if (device != nullptr) context_ = verbs.open_device(device);
  const int error = device != nullptr ? errno : ENODEV;
  if (device != nullptr) {
    retries_ = RetryCounter(device->ibdev_path, port().number);
  }
  verbs.free_device_list(devices);
  if (context_ == nullptr) return Failure("the device cannot be opened", error);
  Register(context_->cmd_fd);
  Register(context_->async_fd);
  GF_RETURN_IF_ERROR(SetNonblocking(context_->async_fd));
  pd_ = verbs.alloc_pd(context_);
  if (pd_ == nullptr) return Failure("no protection domain", errno);
  channel_ = verbs.create_comp_channel(context_);
  if (channel_ == nullptr) return Failure("no completion channel", errno);
  Register(channel_->fd);
  GF_RETURN_IF_ERROR(SetNonblocking(channel_->fd));
  // All that can be outstanding, since one that does not fit breaks all pairs.
  const int entries = args_.links * QueuePair::MostCompletions(args_.receives);
  cq_ = verbs.create_cq(context_, entries, nullptr, channel_, 0);
  if (cq_ == nullptr) {
    return Failure(StrCat("no completion queue of ", entries, " entries"),
                   errno);
  }
  return MakeSlots();
}

Status Rail::MakeSlots() {
  auto staging = CardSlots::Make(verbs(), pd_, kSlots, kSlotBytes,
                                 CardRights::kRead, "staging memory");
  if (!staging.ok()) return staging.status();
  staging_ = std::move(staging).value();
  auto landings = CardSlots::Make(verbs(), pd_, kSlots, kSlotBytes,
                                  CardRights::kPeersMayWrite, "landings");
  if (!landings.ok()) return landings.status();
  landings_ = std::move(landings).value();
  return Status();
}

Rail::~Rail() {
  Stop();
  const VerbsApi& verbs = *args_.verbs;
  staging_ = CardSlots();
  landings_ = CardSlots();
  reach_ = CardReach();
  if (cq_ != nullptr) {
    if (unacknowledged_ > 0) verbs.ack_cq_events(cq_, unacknowledged_);
    verbs.destroy_cq(cq_);
  }
  if (channel_ != nullptr) {
    Unregister(channel_->fd);
    verbs.destroy_comp_channel(channel_);
  }
  if (pd_ != nullptr) verbs.dealloc_pd(pd_);
  if (context_ == nullptr) return;
  Unregister(context_->cmd_fd);
  Unregister(context_->async_fd);
  verbs.close_device(context_);
}

Status Rail::Start(Poller* poller) {
  if (live_ == 0) return Status();
  poller_ = poller;
  GF_RETURN_IF_ERROR(poller->Add(channel_->fd, EPOLLIN, this, kChannelCookie));
  return poller->Add(context_->async_fd, EPOLLIN, this, kAsyncCookie);
}

void Rail::Stop() {
  if (poller_ == nullptr) return;
  poller_->Remove(channel_->fd);
  poller_->Remove(context_->async_fd);
  poller_ = nullptr;
}

std::uint32_t Rail::Add(QueuePair* pair) {
  pairs_.push_back(pair);
  if (live_++ == 0) first_ = pair;
  return static_cast<std::uint32_t>(pairs_.size()) - 1;
}

void Rail::Remove(std::uint32_t index) {
  std::erase(dirty_, pairs_[index]);
  pairs_[index] = nullptr;
  const auto first =
      std::find_if(pairs_.begin(), pairs_.end(),
                   [](const QueuePair* other) { return other != nullptr; });
  first_ = first == pairs_.end() ? nullptr : *first;
  if (--live_ == 0) Stop();
}

RemoteWrites Rail::Count() {
  return {stats_.data_writes, stats_.control_writes, stats_.bytes,
          retries_.Total()};
}

bool Rail::Poll() {
  // A callback may have come back here.
  if (std::exchange(polling_, true)) return false;
  std::array<ibv_wc, kTakenAtOnce> taken;
  int total = 0;
  if (std::exchange(has_seen_, false)) {
    Dispatch(seen_);
    ++total;
  }
  for (;;) {
    const int count = verbs().poll_cq(cq_, kTakenAtOnce, taken.data());
    if (count < 0) {
      BreakAll("its completion queue cannot be read");
      break;
    }
    for (int i = 0; i < count; ++i) {
      Dispatch(taken[static_cast<std::size_t>(i)]);
    }
    total += count;
    if (count < kTakenAtOnce || total >= kTakenPerPoll) break;
  }
  Flush();
  for (const auto& other : others_) {
    if (const auto rail = other.lock()) rail->Flush();
  }
  polling_ = false;
  return total > 0;
}

void Rail::Flush() {
  while (!dirty_.empty()) {
    QueuePair* const pair = dirty_.back();
    dirty_.pop_back();
    pair->Flush();
  }
}

void Rail::Dispatch(const ibv_wc& completion) {
  const std::size_t index = QueuePair::IndexOf(completion);
  if (index < pairs_.size() && pairs_[index] != nullptr) {
    pairs_[index]->OnCompletion(completion);
  }
}

// An event that comes between the last look and the request is not lost if one
// looks once more afterwards.
bool Rail::PrepareToSleep() {
  if (has_seen_ || verbs().req_notify_cq(cq_, 0) != 0) return false;
  const int seen = verbs().poll_cq(cq_, 1, &seen_);
  has_seen_ = seen == 1;
  return seen == 0;  // An error is for Poll(), too.
}

bool Rail::OnEvents(std::uint64_t cookie, std::uint32_t events) {
  static_cast<void>(events);
  if (cookie == kAsyncCookie) return TakeAsyncEvents();
  ibv_cq* cq = nullptr;
  void* owner = nullptr;
  while (verbs().get_cq_event(channel_, &cq, &owner) == 0) ++unacknowledged_;
  if (unacknowledged_ >= kAcknowledgedAtOnce) {
    verbs().ack_cq_events(cq_, std::exchange(unacknowledged_, 0));
  }
  Poll();
  return true;
}

bool Rail::TakeAsyncEvents() {
  ibv_async_event event = {};
  while (verbs().get_async_event(context_, &event) == 0) {
    const bool of_pair = event.event_type == IBV_EVENT_QP_FATAL ||
                         event.event_type == IBV_EVENT_QP_REQ_ERR ||
                         event.event_type == IBV_EVENT_QP_ACCESS_ERR;
    const ibv_qp* const pair = of_pair ? event.element.qp : nullptr;
    const int port = of_pair ? 0 : event.element.port_num;
    // Before anything is destroyed that the event is about.
    verbs().ack_async_event(&event);
    OnAsyncEvent(event.event_type, pair, port);
  }
  return true;
}

void Rail::OnAsyncEvent(ibv_event_type type, const ibv_qp* pair, int port) {
  const std::string what = verbs().event_type_str(type);
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        if (pairs_[i] != nullptr && pairs_[i]->Is(pair)) {
          pairs_[i]->Break(Status(StatusCode::kUnavailable, what));
        }
      }
      break;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
      BreakAll(what);
      break;
    case IBV_EVENT_PORT_ERR:
      if (port == args_.choice.port.number) BreakAll(what);
      break;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
      BreakWithoutAddress(what);
      break;
    default:
      break;
  }
}

// An address that no connection uses may disappear: temporary ones of IPv6 do
// so every day.
void Rail::BreakWithoutAddress(const std::string& why) {
  RdmaPort now;  // Without any address, if the device does not answer.
  if (const auto devices = ListRdmaDevices(verbs()); devices.ok()) {
    for (const RdmaDevice& device : devices.value()) {
      if (device.name != args_.choice.device) continue;
      for (const RdmaPort& port : device.ports) {
        if (port.number == args_.choice.port.number) now = port;
      }
    }
  }
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    if (pairs_[i] == nullptr || pairs_[i]->HasAddress(now)) continue;
    pairs_[i]->Break(Status(
        StatusCode::kUnavailable,
        StrCat("this rank's device says: its address is gone (", why, ")")));
  }
}

// Those that break may destroy others.
void Rail::BreakAll(const std::string& why) {
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    if (pairs_[i] != nullptr) {
      pairs_[i]->Break(Status(StatusCode::kUnavailable,
                              StrCat("this rank's device says: ", why)));
    }
  }
}

}  // namespace gradientflow
