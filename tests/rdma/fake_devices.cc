#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/rdma/fake_calls.h"
#include "tests/rdma/fake_fabric.h"

// Devices: what they say of themselves, and who has opened them.
namespace gradientflow::fake_verbs {

ibv_gid ToGid(const std::string& address) {
  ibv_gid gid = {};
  in_addr four = {};
  if (::inet_pton(AF_INET, address.c_str(), &four) == 1) {
    gid.raw[10] = gid.raw[11] = 0xFF;
    std::memcpy(gid.raw + 12, &four, sizeof(four));
  } else {
    ::inet_pton(AF_INET6, address.c_str(), gid.raw);
  }
  return gid;
}

int NewCount() { return ::eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC); }

int FaultOf(Host* host, std::string_view call) {
  const auto [first, last] = host->faults.equal_range(call);
  for (auto fault = first; fault != last; ++fault) {
    if (--fault->second.in > 0) continue;
    const int error = fault->second.error;
    if (--fault->second.times == 0) host->faults.erase(fault);
    return error;
  }
  return 0;
}

int FaultOf(Device* device, std::string_view call) {
  if (device->removed) {
    // What exists can be given back, and says that it failed.
    for (const std::string_view still :
         {"poll_cq", "destroy_", "dealloc_", "dereg_", "close_"}) {
      if (call.substr(0, still.size()) == still) return 0;
    }
    return EIO;
  }
  return device->host->faults.empty() ? 0 : FaultOf(device->host, call);
}

ibv_context* OpenDevice(ibv_device* which) {
  auto* const device = static_cast<Device*>(which);
  const HiddenLock lock(device->host->fabric->mutex);
  errno = FaultOf(device, "open_device");
  if (errno != 0) return nullptr;
  auto* const context = new Context();
  context->device = device;
  context->cmd_fd = -1;
  context->async_fd = NewCount();
  context->num_comp_vectors = 1;
  context->on = device;
  device->host->contexts.insert(context);
  return context;
}

int CloseDevice(ibv_context* old) {
  auto* const context = static_cast<Context*>(old);
  Host* const host = context->on->host;
  const HiddenLock lock(host->fabric->mutex);
  if (const int error = FaultOf(context->on, "close_device")) return error;
  if (context->children > 0) return EBUSY;
  host->contexts.erase(context);
  ::close(context->async_fd);
  delete context;
  return 0;
}

int QueryDevice(ibv_context* context, ibv_device_attr* out) {
  Device* const device = static_cast<Context*>(context)->on;
  const HiddenLock lock(device->host->fabric->mutex);
  if (const int error = FaultOf(device, "query_device")) return error;
  *out = {};
  std::strcpy(out->fw_ver, "fake");
  out->max_mr_size = device->is.max_mr_bytes;
  out->page_size_cap = 4096;
  out->max_qp = 1 << 16;
  out->max_qp_wr = device->is.max_queue_entries;
  out->max_sge = device->is.max_sge;
  out->max_cq = 1 << 16;
  out->max_cqe = device->is.max_completions;
  out->max_mr = 1 << 16;
  out->max_pd = 1 << 16;
  out->max_qp_rd_atom = 16;
  out->max_qp_init_rd_atom = 16;
  out->phys_port_cnt = static_cast<std::uint8_t>(device->is.ports.size());
  return 0;
}

int QueryPort(ibv_context* context, std::uint8_t port, ibv_port_attr* out) {
  Device* const device = static_cast<Context*>(context)->on;
  const HiddenLock lock(device->host->fabric->mutex);
  if (const int error = FaultOf(device, "query_port")) return error;
  if (port < 1 || port > device->is.ports.size()) return EINVAL;
  const FakePort& is = device->is.ports[port - 1U];
  *out = {};
  out->state = is.active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out->max_mtu = is.mtu;
  out->active_mtu = is.mtu;
  out->gid_tbl_len = static_cast<int>(is.gids.size());
  out->max_msg_sz = is.max_message_bytes;
  out->pkey_tbl_len = 1;
  out->lid = is.lid;
  out->active_width = 2;
  out->active_speed = 32;
  out->link_layer =
      is.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  return 0;
}

ssize_t QueryGids(ibv_context* context, ibv_gid_entry* out, std::size_t room) {
  Device* const device = static_cast<Context*>(context)->on;
  const HiddenLock lock(device->host->fabric->mutex);
  if (const int error = FaultOf(device, "query_gids")) return -error;
  std::size_t count = 0;
  for (std::size_t port = 0; port < device->is.ports.size(); ++port) {
    const std::vector<FakeGid>& gids = device->is.ports[port].gids;
    for (std::size_t index = 0; index < gids.size(); ++index) {
      if (gids[index].address.empty()) continue;
      if (count == room) return -EINVAL;
      ibv_gid_entry& entry = out[count++];
      entry = {};
      entry.gid = device->gids[port][index];
      entry.gid_index = static_cast<std::uint32_t>(index);
      entry.port_num = static_cast<std::uint32_t>(port + 1);
      entry.gid_type = static_cast<std::uint32_t>(gids[index].type);
      entry.ndev_ifindex = gids[index].interface;
    }
  }
  return static_cast<ssize_t>(count);
}

void Destroy(Host* host) {
  for (Pair* const pair : host->pairs) delete pair;
  for (Queue* const queue : host->queues) delete queue;
  for (Channel* const channel : host->channels) {
    ::close(channel->fd);
    delete channel;
  }
  for (Region* const region : host->regions) {
    if (region->mapping != nullptr) {
      ::munmap(region->mapping, region->mapped_bytes);
    }
    delete region;
  }
  for (Domain* const domain : host->domains) delete domain;
  for (Context* const context : host->contexts) {
    ::close(context->async_fd);
    delete context;
  }
}

}  // namespace gradientflow::fake_verbs
