#include "transports/rdma/devices.h"

#include <arpa/inet.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

const char* StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initializing";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "active, deferred";
    case IBV_PORT_NOP:
      break;
  }
  return "in an unknown state";
}

// Codes of the InfiniBand specification: a bit for the number of lanes, and a
// bit for the rate of each.
double RateOf(const ibv_port_attr& port) {
  int lanes = 0;
  switch (port.active_width) {
    case 1:
      lanes = 1;
      break;
    case 2:
      lanes = 4;
      break;
    case 4:
      lanes = 8;
      break;
    case 8:
      lanes = 12;
      break;
    case 16:
      lanes = 2;
      break;
    default:
      break;
  }
  double gbps = 0;
  switch (port.active_speed) {
    case 1:
      gbps = 2.5;
      break;
    case 2:
      gbps = 5;
      break;
    case 4:
    case 8:
      gbps = 10;
      break;
    case 16:
      gbps = 14;
      break;
    case 32:
      gbps = 25;
      break;
    case 64:
      gbps = 50;
      break;
    case 128:
      gbps = 100;
      break;
    default:
      break;
  }
  return lanes * gbps;
}

int BytesOf(ibv_mtu mtu) { return 128 << static_cast<int>(mtu); }

std::string Reason(int error) { return std::strerror(error); }

// A device while its facts are read.
class OpenDevice {
 public:
  OpenDevice(const VerbsApi& verbs, ibv_device* device)
      : verbs_(verbs), context_(verbs.open_device(device)) {
    if (context_ == nullptr) error_ = errno;
  }
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;
  ~OpenDevice() {
    if (context_ != nullptr) verbs_.close_device(context_);
  }

  int error() const { return error_; }

  // Each returns 0 or an errno.
  int ReadPorts(std::vector<RdmaPort>* ports);
  int ReadGids(std::vector<RdmaPort>* ports) const;
  void ReadDmaBuf(RdmaDevice* device) const;

 private:
  const VerbsApi& verbs_;
  ibv_context* const context_;
  int error_ = 0;
  std::size_t gids_ = 0;  // Room in the tables of all ports.
};

int OpenDevice::ReadPorts(std::vector<RdmaPort>* ports) {
  ibv_device_attr device = {};
  int error = verbs_.query_device(context_, &device);
  for (int number = 1; error == 0 && number <= device.phys_port_cnt; ++number) {
    ibv_port_attr seen = {};
    error =
        verbs_.query_port(context_, static_cast<std::uint8_t>(number), &seen);
    if (error != 0) break;
    RdmaPort port;
    port.number = number;
    port.active = seen.state == IBV_PORT_ACTIVE;
    port.state = StateName(seen.state);
    port.ethernet = seen.link_layer == IBV_LINK_LAYER_ETHERNET;
    port.mtu = BytesOf(seen.active_mtu);
    port.gbps = RateOf(seen);
    port.lid = seen.lid;
    port.max_message_bytes = seen.max_msg_sz;
    gids_ += static_cast<std::size_t>(std::max(seen.gid_tbl_len, 0));
    ports->push_back(std::move(port));
  }
  return error;
}

int OpenDevice::ReadGids(std::vector<RdmaPort>* ports) const {
  // There is no answer if they do not all fit.
  std::vector<ibv_gid_entry> entries(gids_);
  const ssize_t found =
      verbs_.query_gids(context_, entries.data(), entries.size());
  if (found < 0) return static_cast<int>(-found);
  entries.resize(std::min(entries.size(), static_cast<std::size_t>(found)));
  for (const ibv_gid_entry& entry : entries) {
    for (RdmaPort& port : *ports) {
      if (static_cast<std::uint32_t>(port.number) != entry.port_num) continue;
      RdmaGid gid;
      gid.index = static_cast<int>(entry.gid_index);
      gid.type = static_cast<ibv_gid_type>(entry.gid_type);
      std::copy_n(entry.gid.raw, gid.bytes.size(), gid.bytes.begin());
      gid.interface = entry.ndev_ifindex;
      port.gids.push_back(gid);
    }
  }
  return 0;
}

// A kernel and a driver that know dma-buf get as far as looking at the
// descriptor, which is none.
void OpenDevice::ReadDmaBuf(RdmaDevice* device) const {
  if (verbs_.reg_dmabuf_mr == nullptr) {
    device->no_dma_buf = "the library is older than rdma-core 34";
    return;
  }
  ibv_pd* const pd = verbs_.alloc_pd(context_);
  if (pd == nullptr) {
    device->no_dma_buf = Reason(errno);
    return;
  }
  ibv_mr* const mr =
      verbs_.reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  const int error = errno;
  if (mr != nullptr) verbs_.dereg_mr(mr);
  verbs_.dealloc_pd(pd);
  device->dma_buf = mr != nullptr || error == EBADF;
  if (!device->dma_buf) device->no_dma_buf = Reason(error);
}

RdmaDevice Describe(const VerbsApi& verbs, ibv_device* handle) {
  RdmaDevice device;
  device.name = handle->name;
  OpenDevice open(verbs, handle);
  if (open.error() != 0) {
    device.problem = StrCat("cannot be opened: ", Reason(open.error()));
    if (open.error() == EACCES || open.error() == EPERM) {
      device.problem +=
          " (the group of /dev/infiniband/uverbs* may; a container needs "
          "--device)";
    }
    return device;
  }
  int error = open.ReadPorts(&device.ports);
  if (error == 0) error = open.ReadGids(&device.ports);
  if (error != 0) {
    device.problem = StrCat("cannot be asked: ", Reason(error));
    device.ports.clear();
    return device;
  }
  open.ReadDmaBuf(&device);
  return device;
}

std::string MemlockText() {
  const std::size_t limit = MemlockLimit();
  if (limit == SIZE_MAX) return "memory to be locked: no limit";
  return StrCat("memory to be locked: at most ", limit,
                " bytes, if the process is not privileged; ulimit -l unlimited "
                "lifts the limit, and docker's --ulimit memlock=-1");
}

std::string PortText(const RdmaDevice& device, const RdmaPort& port,
                     const std::string& indent) {
  std::string text =
      StrCat(device.name, ":", port.number, " ", port.state, ", ",
             port.ethernet ? "Ethernet" : StrCat("InfiniBand, LID ", port.lid));
  if (port.gbps > 0) text += StrCat(", ", port.gbps, " Gb/s");
  text +=
      StrCat(", MTU ", port.mtu, ", memory of GPUs by dma-buf: ",
             device.dma_buf ? "yes" : StrCat("no (", device.no_dma_buf, ")"));
  for (const RdmaGid& gid : port.gids) {
    text += StrCat("\n", indent, "  GID ", gid.index, ": ", Name(gid.type), " ",
                   gid.ToString());
  }
  return text;
}

}  // namespace

bool RdmaGid::is_ipv4() const {
  constexpr std::array<std::uint8_t, 12> kMapped = {0, 0, 0, 0, 0,    0,
                                                    0, 0, 0, 0, 0xFF, 0xFF};
  return std::equal(kMapped.begin(), kMapped.end(), bytes.begin());
}

bool RdmaGid::is_link_local() const {
  return bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80;
}

std::string RdmaGid::ToString() const {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (is_ipv4()) {
    ::inet_ntop(AF_INET, bytes.data() + 12, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, bytes.data(), text.data(), text.size());
  }
  return text.data();
}

const char* Name(ibv_gid_type type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return "IB";
    case IBV_GID_TYPE_ROCE_V1:
      return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
      return "RoCE v2";
  }
  return "of an unknown type";
}

Result<std::vector<RdmaDevice>> ListRdmaDevices(const VerbsApi& verbs) {
  int count = 0;
  errno = 0;
  ibv_device** const handles = verbs.get_device_list(&count);
  if (handles == nullptr) {
    return Status(StatusCode::kUnavailable,
                  StrCat("the kernel lists no RDMA devices: ",
                         errno != 0 ? Reason(errno) : "no reason given"));
  }
  std::vector<RdmaDevice> devices;
  for (int i = 0; i < count; ++i) {
    devices.push_back(Describe(verbs, handles[i]));
  }
  verbs.free_device_list(handles);
  return devices;
}

std::size_t MemlockLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return SIZE_MAX;
  return limit.rlim_cur == RLIM_INFINITY ? SIZE_MAX : limit.rlim_cur;
}

std::string MemlockRemedy() {
  const std::size_t limit = MemlockLimit();
  if (limit == SIZE_MAX) return {};
  return StrCat("; this process may lock ", limit,
                " bytes in memory: ulimit -l unlimited lifts the limit, and "
                "docker's --ulimit memlock=-1");
}

std::string RdmaText(const std::string& indent) {
  const auto verbs = LoadVerbs();
  if (!verbs.ok()) return verbs.status().message();
  const auto devices = ListRdmaDevices(*verbs.value());
  if (!devices.ok()) return devices.status().message();
  if (devices.value().empty()) {
    return StrCat("no device (", verbs.value()->path, ")");
  }
  std::string text;
  for (const RdmaDevice& device : devices.value()) {
    if (!device.problem.empty()) {
      text += StrCat(device.name, ": ", device.problem, "\n", indent);
    }
    for (const RdmaPort& port : device.ports) {
      text += StrCat(PortText(device, port, indent), "\n", indent);
    }
  }
  return text + MemlockText();
}

}  // namespace gradientflow
