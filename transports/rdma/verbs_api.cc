#include "transports/rdma/verbs_api.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

Status Unusable(const std::string& what) {
  return Status(StatusCode::kUnimplemented, StrCat("libibverbs: ", what));
}

// Looks names up in one library, and remembers those that are missing. A name
// has a version, since an old program's function of the same name takes other
// structures.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void Optional(const char* name, const char* version, Function** function) {
    *function = reinterpret_cast<Function*>(::dlvsym(library_, name, version));
  }
  template <typename Function>
  void Required(const char* name, const char* version, Function** function) {
    Optional(name, version, function);
    if (*function == nullptr) {
      missing_ +=
          StrCat(missing_.empty() ? "" : ", ", name, " (", version, ")");
    }
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

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
  s.Required("ibv_get_device_list", "IBVERBS_1.1", &api->get_device_list);
  s.Required("ibv_free_device_list", "IBVERBS_1.1", &api->free_device_list);
  s.Required("ibv_open_device", "IBVERBS_1.1", &api->open_device);
  s.Required("ibv_close_device", "IBVERBS_1.1", &api->close_device);
  s.Required("ibv_query_device", "IBVERBS_1.1", &api->query_device);
  s.Required("_ibv_query_gid_table", "IBVERBS_1.11", &query_gid_table);
  s.Required("ibv_alloc_pd", "IBVERBS_1.1", &api->alloc_pd);
  s.Required("ibv_dealloc_pd", "IBVERBS_1.1", &api->dealloc_pd);
  s.Required("ibv_reg_mr_iova2", "IBVERBS_1.8", &api->reg_mr);
  s.Optional("ibv_reg_dmabuf_mr", "IBVERBS_1.12", &api->reg_dmabuf_mr);
  s.Required("ibv_dereg_mr", "IBVERBS_1.1", &api->dereg_mr);
  s.Required("ibv_create_comp_channel", "IBVERBS_1.0",
             &api->create_comp_channel);
  s.Required("ibv_destroy_comp_channel", "IBVERBS_1.0",
             &api->destroy_comp_channel);
  s.Required("ibv_create_cq", "IBVERBS_1.1", &api->create_cq);
  s.Required("ibv_destroy_cq", "IBVERBS_1.1", &api->destroy_cq);
  s.Required("ibv_get_cq_event", "IBVERBS_1.1", &api->get_cq_event);
  s.Required("ibv_ack_cq_events", "IBVERBS_1.1", &api->ack_cq_events);
  s.Required("ibv_create_qp", "IBVERBS_1.1", &api->create_qp);
  s.Required("ibv_modify_qp", "IBVERBS_1.1", &api->modify_qp);
  s.Required("ibv_destroy_qp", "IBVERBS_1.1", &api->destroy_qp);
  s.Required("ibv_get_async_event", "IBVERBS_1.1", &api->get_async_event);
  s.Required("ibv_ack_async_event", "IBVERBS_1.1", &api->ack_async_event);
  s.Required("ibv_fork_init", "IBVERBS_1.1", &api->fork_init);
  s.Optional("ibv_is_fork_initialized", "IBVERBS_1.13",
             &api->is_fork_initialized);
  s.Required("ibv_wc_status_str", "IBVERBS_1.1", &api->wc_status_str);
  s.Required("ibv_event_type_str", "IBVERBS_1.1", &api->event_type_str);
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

}  // namespace

Result<std::shared_ptr<const VerbsApi>> LoadVerbs() {
  static const Result<std::shared_ptr<const VerbsApi>> loaded = Load();
  return loaded;
}

}  // namespace gradientflow
