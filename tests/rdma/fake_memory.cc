#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "tests/rdma/fake_calls.h"
#include "tests/rdma/fake_fabric.h"

// Protection domains, and memory that is registered in them: who may use which
// bytes by which key.
namespace gradientflow::fake_verbs {
namespace {

std::size_t PageBytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// The pages that hold these bytes, as the system locks them.
std::size_t LockedBytes(std::uintptr_t begin, std::size_t bytes) {
  const std::uintptr_t page = PageBytes();
  const std::uintptr_t first = begin / page;
  return ((begin + bytes + page - 1) / page - first) * page;
}

bool IsMapped(void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t page = PageBytes();
  std::vector<unsigned char> resident(LockedBytes(begin, bytes) / page);
  return ::mincore(reinterpret_cast<void*>(begin / page * page),
                   resident.size() * page, resident.data()) == 0;
}

// Who may write from afar may write here.
int BadAccess(unsigned access) {
  constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
  constexpr unsigned kNeedLocal =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((access & ~(kKnown | IBV_ACCESS_OPTIONAL_RANGE)) != 0) return EINVAL;
  const bool local = (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  return (access & kNeedLocal) != 0 && !local ? EINVAL : 0;
}

// Why so much may not be registered, or 0.
int Refused(const Domain& domain, std::size_t bytes, std::size_t locked,
            unsigned access) {
  const Device& device = *domain.on->on;
  if (bytes == 0 || bytes > device.is.max_mr_bytes) return EINVAL;
  if (const int error = BadAccess(access)) return error;
  const Host& host = *device.host;
  return locked > host.is.memlock_bytes -
                      std::min<std::uint64_t>(host.is.memlock_bytes,
                                              host.locked_bytes)
             ? ENOMEM
             : 0;
}

bool IsOfGpu(const Domain& domain, std::uint64_t address) {
  const FakeHost& host = domain.on->on->host->is;
  return host.of_gpu &&
         host.of_gpu(reinterpret_cast<void*>(address));  // NOLINT
}

Region* Register(Domain* domain, const Region& wanted) {
  auto* const region = new Region(wanted);
  region->of_gpu = IsOfGpu(*domain, wanted.start);
  if (region->of_gpu) region->arrived.resize(wanted.length);
  Device* const device = domain->on->on;
  Host* const host = device->host;
  region->context = domain->on;
  region->pd = domain;
  region->in = domain;
  region->on = device;
  // 0 is no key, and the local one is odd.
  device->next_key += 2;
  if (device->next_key == 0) device->next_key = 2;
  region->rkey = device->next_key;
  region->lkey = device->next_key + 1;
  device->regions[region->rkey] = region;
  device->regions[region->lkey] = region;
  ++domain->children;
  host->regions.insert(region);
  host->locked_bytes += region->locked_bytes;
  FakeVerbsStats& stats = host->stats;
  ++stats.registrations;
  stats.registered_bytes += region->length;
  stats.most_registered_bytes =
      std::max(stats.most_registered_bytes, stats.registered_bytes);
  stats.access_granted |= region->access;
  Release(&region->registered);
  return region;
}

char* Within(const Region& region, std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t offset = address - region.start;
  if (address < region.start || offset > region.length ||
      bytes > region.length - offset) {
    return nullptr;
  }
  return region.memory + offset;
}

char* ByKey(const Pair& pair, std::uint32_t key, bool local, Region** region) {
  const auto found = pair.on->regions.find(key);
  if (found == pair.on->regions.end()) return nullptr;
  *region = found->second;
  if ((local ? (*region)->lkey : (*region)->rkey) != key) return nullptr;
  return (*region)->in == pair.in ? (*region)->memory : nullptr;
}

}  // namespace

char* Local(const Pair& pair, const ibv_sge& sge, unsigned access,
            Region** region) {
  if (ByKey(pair, sge.lkey, true, region) == nullptr) return nullptr;
  if (((*region)->access & access) != access) return nullptr;
  return Within(**region, sge.addr, sge.length);
}

char* Remote(const Pair& pair, std::uint32_t key, std::uint64_t address,
             std::uint64_t bytes, Region** region) {
  if (ByKey(pair, key, false, region) == nullptr) return nullptr;
  if (((*region)->access & IBV_ACCESS_REMOTE_WRITE) == 0) return nullptr;
  return Within(**region, address, bytes);
}

bool Readable(const Pair& pair, const Send& send) {
  if ((send.wr.send_flags & IBV_SEND_INLINE) != 0) return true;
  Region* region = nullptr;
  for (int i = 0; i < send.wr.num_sge; ++i) {
    const ibv_sge& sge = send.sges[static_cast<std::size_t>(i)];
    if (Local(pair, sge, 0, &region) == nullptr) return false;
  }
  return true;
}

void Gather(Pair* pair, const Send& send, std::uint64_t offset, char* to,
            std::uint64_t bytes) {
  if ((send.wr.send_flags & IBV_SEND_INLINE) != 0) {
    pair->order.Copy(to, send.inlined.data() + offset, bytes);
    return;
  }
  for (std::size_t i = 0; bytes > 0; ++i) {
    const ibv_sge& sge = send.sges[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    Region* region = nullptr;
    const char* const from = Local(*pair, sge, 0, &region) + offset;
    const std::uint64_t part = std::min(bytes, sge.length - offset);
    pair->order.Acquire(&region->registered);
    pair->order.Copy(to, from, part);
    if (region->of_gpu) region->on->host->stats.gpu_bytes_read += part;
    pair->order.Release(&region->copied);
    to += part;
    bytes -= part;
    offset = 0;
  }
}

ibv_pd* AllocPd(ibv_context* on) {
  auto* const context = static_cast<Context*>(on);
  Host* const host = context->on->host;
  const HiddenLock lock(host->fabric->mutex);
  errno = FaultOf(context->on, "alloc_pd");
  if (errno != 0) return nullptr;
  auto* const domain = new Domain();
  domain->context = context;
  domain->on = context;
  ++context->children;
  host->domains.insert(domain);
  return domain;
}

int DeallocPd(ibv_pd* old) {
  auto* const domain = static_cast<Domain*>(old);
  Host* const host = domain->on->on->host;
  const HiddenLock lock(host->fabric->mutex);
  if (const int error = FaultOf(domain->on->on, "dealloc_pd")) return error;
  if (domain->children > 0) return EBUSY;
  --domain->on->children;
  host->domains.erase(domain);
  delete domain;
  return 0;
}

ibv_mr* RegMr(ibv_pd* pd, void* data, std::size_t bytes, std::uint64_t address,
              unsigned access) {
  auto* const domain = static_cast<Domain*>(pd);
  Host* const host = domain->on->on->host;
  const HiddenLock lock(host->fabric->mutex);
  Region wanted;
  wanted.addr = data;
  wanted.length = bytes;
  wanted.start = address;
  wanted.memory = static_cast<char*>(data);
  wanted.access = access;
  const bool of_gpu = IsOfGpu(*domain, reinterpret_cast<std::uintptr_t>(data));
  if (!of_gpu) {
    wanted.locked_bytes =
        LockedBytes(reinterpret_cast<std::uintptr_t>(data), bytes);
  }
  int error = FaultOf(domain->on->on, "reg_mr");
  if (error == 0 && of_gpu && !host->is.peermem) error = EFAULT;
  if (error == 0) {
    error = Refused(*domain, bytes, wanted.locked_bytes, access);
  }
  if (error == 0 && !IsMapped(data, bytes)) error = EFAULT;
  errno = error;
  return error == 0 ? Register(domain, wanted) : nullptr;
}

ibv_mr* RegDmabufMr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                    std::uint64_t address, int fd, int access) {
  auto* const domain = static_cast<Domain*>(pd);
  Device* const device = domain->on->on;
  const HiddenLock lock(device->host->fabric->mutex);
  Region wanted;
  wanted.length = bytes;
  wanted.start = address;
  wanted.access = static_cast<unsigned>(access);
  int error = FaultOf(device, "reg_dmabuf_mr");
  if (error == 0 && !device->is.dma_buf) error = EOPNOTSUPP;
  if (error == 0) error = Refused(*domain, bytes, 0, wanted.access);
  if (error == 0) {
    wanted.mapped_bytes = offset + bytes;
    wanted.mapping = ::mmap(nullptr, wanted.mapped_bytes,
                            PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (wanted.mapping == MAP_FAILED) error = errno;
  }
  errno = error;
  if (error != 0) return nullptr;
  wanted.memory = static_cast<char*>(wanted.mapping) + offset;
  return Register(domain, wanted);
}

int DeregMr(ibv_mr* old) {
  auto* const region = static_cast<Region*>(old);
  Host* const host = region->on->host;
  const HiddenLock lock(host->fabric->mutex);
  if (const int error = FaultOf(region->on, "dereg_mr")) return error;
  Acquire(&region->copied);
  if (region->of_gpu && !IsOfGpu(*region->in, region->start)) {
    host->fabric->Problem("memory of a GPU is deregistered after it was freed");
  }
  region->on->regions.erase(region->rkey);
  region->on->regions.erase(region->lkey);
  --region->in->children;
  host->regions.erase(region);
  host->locked_bytes -= region->locked_bytes;
  ++host->stats.deregistrations;
  host->stats.registered_bytes -= region->length;
  if (region->mapping != nullptr) {
    ::munmap(region->mapping, region->mapped_bytes);
  }
  delete region;
  return 0;
}

}  // namespace gradientflow::fake_verbs
