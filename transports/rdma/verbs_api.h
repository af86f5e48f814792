#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gradientflow/base/status.h"

namespace gradientflow {

// The calls of libibverbs that this transport makes; its manual pages (ibv_*)
// describe them. A value: tests put a fake in their place. Those that return an
// int return 0 or an errno, and those that return a pointer null and errno,
// unless their comment says something else.
struct VerbsApi {
  std::string path;  // Of the library, as it was found.

  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* out) = nullptr;
  int (*query_port)(ibv_context* context, std::uint8_t port,
                    ibv_port_attr* out) = nullptr;
  // Returns how many of its GIDs the device has put in `out`, or -errno.
  ssize_t (*query_gids)(ibv_context* context, ibv_gid_entry* out,
                        std::size_t room) = nullptr;

  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* pd) = nullptr;
  // `access` may have bits of the optional range, which a device that lacks
  // them ignores.
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* data, std::size_t bytes,
                    std::uint64_t address, unsigned access) = nullptr;
  // Null if the library has none.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                           std::uint64_t address, int fd, int access) = nullptr;
  int (*dereg_mr)(ibv_mr* mr) = nullptr;

  ibv_comp_channel* (*create_comp_channel)(ibv_context* context) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel* channel) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* owner,
                       ibv_comp_channel* channel, int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* cq) = nullptr;
  // Returns how many completions it has put in `out`, or below 0.
  int (*poll_cq)(ibv_cq* cq, int room, ibv_wc* out) = nullptr;
  int (*req_notify_cq)(ibv_cq* cq, int solicited_only) = nullptr;
  // Returns 0, or -1 and errno.
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq,
                      void** owner) = nullptr;
  void (*ack_cq_events)(ibv_cq* cq, unsigned count) = nullptr;

  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* qp) = nullptr;
  int (*post_send)(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) = nullptr;
  int (*post_recv)(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) = nullptr;

  // Returns 0, or -1 and errno.
  int (*get_async_event)(ibv_context* context, ibv_async_event* out) = nullptr;
  void (*ack_async_event)(ibv_async_event* event) = nullptr;

  int (*fork_init)() = nullptr;
  ibv_fork_status (*is_fork_initialized)() = nullptr;
  const char* (*wc_status_str)(ibv_wc_status status) = nullptr;
  const char* (*event_type_str)(ibv_event_type event) = nullptr;
};

// Loads libibverbs.so.1 from where the loader looks. The library stays loaded
// for the life of the process, since its drivers cannot be unloaded.
// Thread-safe.
// Returns kUnimplemented, with the loader's reason and the package to install,
// if there is no library, or with the names of the functions that it lacks.
Result<std::shared_ptr<const VerbsApi>> LoadVerbs();
// For tests: what LoadVerbs() returns from now on; null for the real library.
void ReplaceVerbs(std::shared_ptr<const VerbsApi> verbs);

}  // namespace gradientflow
