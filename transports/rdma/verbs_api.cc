#include "transports/rdma/verbs_api.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/base/symbols.h"

namespace gradientflow {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

Status Unusable(const std::string& what) {
  return Status(StatusCode::kUnimplemented, StrCat("libibverbs: ", what));
}

// What verbs.h defines inline calls a driver through the tables in its objects.

int QueryPort(ibv_context* context, std::uint8_t port, ibv_port_attr* out) {
  verbs_context* const extended = verbs_get_ctx(context);
  // The table is counted from its end, so that it can grow at its beginning.
  constexpr std::size_t kNeeded =
      sizeof(verbs_context) - offsetof(verbs_context, query_port);
  if (extended == nullptr || extended->sz < kNeeded ||
      extended->query_port == nullptr) {
    return EOPNOTSUPP;
  }
  *out = {};
  return extended->query_port(context, port, out, sizeof(*out));
}

int PollCq(ibv_cq* cq, int room, ibv_wc* out) {
  return ibv_poll_cq(cq, room, out);
}

int ReqNotifyCq(ibv_cq* cq, int solicited_only) {
  return ibv_req_notify_cq(cq, solicited_only);
}

int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
  return ibv_post_send(qp, first, bad);
}

int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  return ibv_post_recv(qp, first, bad);
}

ssize_t (*query_gid_table)(ibv_context*, ibv_gid_entry*, std::size_t,
                           std::uint32_t, std::size_t) = nullptr;

ssize_t QueryGids(ibv_context* context, ibv_gid_entry* out, std::size_t room) {
  return query_gid_table(context, out, room, 0, sizeof(*out));
}

void FindAll(Symbols* symbols, VerbsApi* api) {
  Symbols& s = *symbols;
  s.Required("ibv_get_device_list", &api->get_device_list, "IBVERBS_1.1");
  s.Required("ibv_free_device_list", &api->free_device_list, "IBVERBS_1.1");
  s.Required("ibv_open_device", &api->open_device, "IBVERBS_1.1");
  s.Required("ibv_close_device", &api->close_device, "IBVERBS_1.1");
  s.Required("ibv_query_device", &api->query_device, "IBVERBS_1.1");
  s.Required("_ibv_query_gid_table", &query_gid_table, "IBVERBS_1.11");
  s.Required("ibv_alloc_pd", &api->alloc_pd, "IBVERBS_1.1");
  s.Required("ibv_dealloc_pd", &api->dealloc_pd, "IBVERBS_1.1");
  s.Required("ibv_reg_mr_iova2", &api->reg_mr, "IBVERBS_1.8");
  s.Optional("ibv_reg_dmabuf_mr", &api->reg_dmabuf_mr, "IBVERBS_1.12");
  s.Required("ibv_dereg_mr", &api->dereg_mr, "IBVERBS_1.1");
  s.Required("ibv_create_comp_channel", &api->create_comp_channel,
             "IBVERBS_1.0");
  s.Required("ibv_destroy_comp_channel", &api->destroy_comp_channel,
             "IBVERBS_1.0");
  s.Required("ibv_create_cq", &api->create_cq, "IBVERBS_1.1");
  s.Required("ibv_destroy_cq", &api->destroy_cq, "IBVERBS_1.1");
  s.Required("ibv_get_cq_event", &api->get_cq_event, "IBVERBS_1.1");
  s.Required("ibv_ack_cq_events", &api->ack_cq_events, "IBVERBS_1.1");
  s.Required("ibv_create_qp", &api->create_qp, "IBVERBS_1.1");
  s.Required("ibv_modify_qp", &api->modify_qp, "IBVERBS_1.1");
  s.Required("ibv_destroy_qp", &api->destroy_qp, "IBVERBS_1.1");
  s.Required("ibv_get_async_event", &api->get_async_event, "IBVERBS_1.1");
  s.Required("ibv_ack_async_event", &api->ack_async_event, "IBVERBS_1.1");
  s.Required("ibv_fork_init", &api->fork_init, "IBVERBS_1.1");
  s.Optional("ibv_is_fork_initialized", &api->is_fork_initialized,
             "IBVERBS_1.13");
  s.Required("ibv_wc_status_str", &api->wc_status_str, "IBVERBS_1.1");
  s.Required("ibv_event_type_str", &api->event_type_str, "IBVERBS_1.1");
  api->query_port = &QueryPort;
  api->query_gids = &QueryGids;
  api->poll_cq = &PollCq;
  api->req_notify_cq = &ReqNotifyCq;
  api->post_send = &PostSend;
  api->post_recv = &PostRecv;
}

Result<std::shared_ptr<const VerbsApi>> Load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return Unusable(StrCat("the library cannot be loaded (",
                           why != nullptr ? why : "no reason given",
                           "); Debian's package is libibverbs1, with "
                           "ibverbs-providers"));
  }
  auto api = std::make_shared<VerbsApi>();
  Symbols symbols(library);
  FindAll(&symbols, api.get());
  if (!symbols.missing().empty()) {
    return Unusable(StrCat(kLibrary, " lacks ", symbols.missing(),
                           ", expected that of rdma-core 32 or newer"));
  }
  Dl_info info = {};
  const bool known =
      ::dladdr(reinterpret_cast<void*>(api->get_device_list), &info) != 0;
  api->path = known && info.dli_fname != nullptr ? info.dli_fname : kLibrary;
  return std::shared_ptr<const VerbsApi>(std::move(api));
}

struct Replacement {
  Mutex mutex;
  std::shared_ptr<const VerbsApi> verbs GF_GUARDED_BY(mutex);
};
Replacement& TheReplacement() {
  static auto* const replacement = new Replacement;
  return *replacement;
}

}  // namespace

void ReplaceVerbs(std::shared_ptr<const VerbsApi> verbs) {
  Replacement& replacement = TheReplacement();
  MutexLock lock(replacement.mutex);
  replacement.verbs = std::move(verbs);
}

Result<std::shared_ptr<const VerbsApi>> LoadVerbs() {
  {
    Replacement& replacement = TheReplacement();
    MutexLock lock(replacement.mutex);
    if (replacement.verbs != nullptr) return replacement.verbs;
  }
  static const Result<std::shared_ptr<const VerbsApi>> loaded = Load();
  return loaded;
}

}  // namespace gradientflow
