#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_calls.h"
#include "tests/rdma/fake_fabric.h"

// The table of functions of each host. Most calls name an object, from which
// its host is known. Those that name none are functions of their own for each
// place in the table of hosts.
namespace gradientflow::fake_verbs {
namespace {

constexpr std::size_t kHosts = 64;

std::array<std::atomic<Host*>, kHosts>& Places() {
  static std::array<std::atomic<Host*>, kHosts> places = {};
  return places;
}

ibv_device** DeviceList(Host* host, int* count) {
  const HiddenLock lock(host->fabric->mutex);
  errno = FaultOf(host, "get_device_list");
  if (errno != 0) return nullptr;
  auto* const list = new ibv_device*[host->devices.size() + 1]();
  int found = 0;
  for (const auto& device : host->devices) {
    if (!device->removed) list[found++] = device.get();
  }
  if (count != nullptr) *count = found;
  ++host->lists;
  return list;
}

void FreeDeviceList(Host* host, ibv_device** list) {
  const HiddenLock lock(host->fabric->mutex);
  --host->lists;
  delete[] list;
}

void AckAsyncEvent(Host* host, ibv_async_event* /*event*/) {
  const HiddenLock lock(host->fabric->mutex);
  if (++host->acknowledged <= host->events_taken) return;
  host->fabric->Problem("more async events are acknowledged than there were");
}

int ForkInit(Host* host) {
  const HiddenLock lock(host->fabric->mutex);
  const int error = FaultOf(host, "fork_init");
  if (error == 0 && host->is.fork == IBV_FORK_DISABLED) {
    host->is.fork = IBV_FORK_ENABLED;
  }
  return error;
}

ibv_fork_status IsForkInitialized(Host* host) {
  const HiddenLock lock(host->fabric->mutex);
  return host->is.fork;
}

template <std::size_t kPlace>
void FillOwn(VerbsApi* api) {
  static Host* (*const host)() = [] { return Places()[kPlace].load(); };
  api->get_device_list = [](int* count) { return DeviceList(host(), count); };
  api->free_device_list = [](ibv_device** list) {
    FreeDeviceList(host(), list);
  };
  api->ack_async_event = [](ibv_async_event* event) {
    AckAsyncEvent(host(), event);
  };
  api->fork_init = [] { return ForkInit(host()); };
  api->is_fork_initialized = [] { return IsForkInitialized(host()); };
}

template <std::size_t... kPlace>
void FillOwn(std::size_t place, VerbsApi* api,
             std::index_sequence<kPlace...> /*all*/) {
  constexpr std::array<void (*)(VerbsApi*), kHosts> kFill = {
      &FillOwn<kPlace>...};
  kFill.at(place)(api);
}

const char* StatusText(ibv_wc_status status) {
  constexpr std::array<const char*, 24> kTexts = {
      "success",
      "local length error",
      "local QP operation error",
      "local EE context operation error",
      "local protection error",
      "Work Request Flushed Error",
      "memory management operation error",
      "bad response error",
      "local access error",
      "remote invalid request error",
      "remote access error",
      "remote operation error",
      "transport retry counter exceeded",
      "RNR retry counter exceeded",
      "local RDD violation error",
      "remote invalid RD request",
      "aborted error",
      "invalid EE context number",
      "invalid EE context state",
      "fatal error",
      "response timeout error",
      "general error",
      "TM error",
      "TM software rendezvous"};
  const auto index = static_cast<std::size_t>(status);
  return index < kTexts.size() ? kTexts.at(index) : "unknown";
}

const char* EventText(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_CQ_ERR:
      return "CQ error";
    case IBV_EVENT_QP_FATAL:
      return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR:
      return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "local access violation work queue error";
    case IBV_EVENT_DEVICE_FATAL:
      return "local catastrophic error";
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    case IBV_EVENT_GID_CHANGE:
      return "GID table change";
    default:
      return "another event";
  }
}

void FillShared(VerbsApi* api) {
  api->open_device = &OpenDevice;
  api->close_device = &CloseDevice;
  api->query_device = &QueryDevice;
  api->query_port = &QueryPort;
  api->query_gids = &QueryGids;
  api->alloc_pd = &AllocPd;
  api->dealloc_pd = &DeallocPd;
  api->reg_mr = &RegMr;
  api->reg_dmabuf_mr = &RegDmabufMr;
  api->dereg_mr = &DeregMr;
  api->create_comp_channel = &CreateCompChannel;
  api->destroy_comp_channel = &DestroyCompChannel;
  api->create_cq = &CreateCq;
  api->destroy_cq = &DestroyCq;
  api->poll_cq = &PollCq;
  api->req_notify_cq = &ReqNotifyCq;
  api->get_cq_event = &GetCqEvent;
  api->ack_cq_events = &AckCqEvents;
  api->create_qp = &CreateQp;
  api->modify_qp = &ModifyQp;
  api->destroy_qp = &DestroyQp;
  api->post_send = &PostSend;
  api->post_recv = &PostRecv;
  api->get_async_event = &GetAsyncEvent;
  api->wc_status_str = &StatusText;
  api->event_type_str = &EventText;
}

}  // namespace

std::shared_ptr<const VerbsApi> MakeApi(Host* host) {
  for (std::size_t place = 0; place < kHosts; ++place) {
    Host* nobody = nullptr;
    if (!Places()[place].compare_exchange_strong(nobody, host)) continue;
    host->place = place;
    auto api = std::make_shared<VerbsApi>();
    api->path = StrCat("fake verbs of host ", host->index);
    FillShared(api.get());
    FillOwn(place, api.get(), std::make_index_sequence<kHosts>());
    return api;
  }
  std::abort();  // The header says how many there are.
}

void DropApi(Host* host) { Places().at(host->place).store(nullptr); }

}  // namespace gradientflow::fake_verbs
