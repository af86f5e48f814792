#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/rdma/fake_objects.h"

// The calls of VerbsApi that find their host by the object they are given.
namespace gradientflow::fake_verbs {

// The errno with which a call of that name fails, or 0. Called with the lock.
int FaultOf(Device* device, std::string_view call);
int FaultOf(Host* host, std::string_view call);
// An eventfd from which each read takes one.
int NewCount();

// fake_devices.cc
ibv_context* OpenDevice(ibv_device* device);
int CloseDevice(ibv_context* context);
int QueryDevice(ibv_context* context, ibv_device_attr* out);
int QueryPort(ibv_context* context, std::uint8_t port, ibv_port_attr* out);
ssize_t QueryGids(ibv_context* context, ibv_gid_entry* out, std::size_t room);

// fake_memory.cc
ibv_pd* AllocPd(ibv_context* context);
int DeallocPd(ibv_pd* pd);
ibv_mr* RegMr(ibv_pd* pd, void* data, std::size_t bytes, std::uint64_t address,
              unsigned access);
ibv_mr* RegDmabufMr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                    std::uint64_t address, int fd, int access);
int DeregMr(ibv_mr* mr);

// fake_completions.cc
ibv_comp_channel* CreateCompChannel(ibv_context* context);
int DestroyCompChannel(ibv_comp_channel* channel);
ibv_cq* CreateCq(ibv_context* context, int entries, void* owner,
                 ibv_comp_channel* channel, int vector);
int DestroyCq(ibv_cq* cq);
int PollCq(ibv_cq* cq, int room, ibv_wc* out);
int ReqNotifyCq(ibv_cq* cq, int solicited_only);
int GetCqEvent(ibv_comp_channel* channel, ibv_cq** cq, void** owner);
void AckCqEvents(ibv_cq* cq, unsigned count);
int GetAsyncEvent(ibv_context* context, ibv_async_event* out);

// fake_pairs.cc
ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attributes);
int ModifyQp(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
int DestroyQp(ibv_qp* qp);
int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad);
int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad);

}  // namespace gradientflow::fake_verbs
