#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "gradientflow/base/str_cat.h"
#include "transports/rdma/card_memory.h"
#include "transports/rdma/devices.h"

// How memory of an accelerator is registered. The kernel has two ways to learn
// which pages of the bus are behind it:
//
//   dma-buf         the accelerator's driver exports a descriptor, and the
//                   card's driver imports it; part of Linux since 5.12
//   nvidia-peermem  a module that is asked for addresses which the kernel does
//                   not know, so the call is that for host memory
namespace gradientflow {
namespace {

// Completions do not overtake data on the way to host memory. On the way to
// another device they may, and the flush that makes data visible there assumes
// that writes keep their order. So relaxed ordering is not asked for.
constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// The window through which the bus sees the memory may be smaller than that.
constexpr const char* kWindowRemedy =
    "; the window of the GPU (BAR1 in nvidia-smi -q -d MEMORY) may be too "
    "small: enable large BARs (above 4G decoding) in the BIOS";

std::string ByDmaBufRemedy(int error) {
  switch (error) {
    case EOPNOTSUPP:
    case ENOSYS:
    case EPROTONOSUPPORT:
      return "; the kernel needs to be 5.12 or newer, with a driver of the "
             "card that takes dma-buf";
    case ENOMEM:
    case ENOSPC:
      return kWindowRemedy;
    default:
      return {};
  }
}

std::string ByAddressRemedy(int error) {
  switch (error) {
    case EFAULT:
    case EINVAL:
      return "; the kernel does not know the address: modprobe nvidia-peermem";
    case ENOMEM:
      return StrCat(kWindowRemedy, MemlockRemedy());
    default:
      return {};
  }
}

std::uint64_t AddressOf(const DeviceBuffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.memory.data);
}

// Both return null, and the reason in *why, if it does not work.

ibv_mr* ByDmaBuf(const VerbsApi& verbs, ibv_pd* pd, const DeviceBuffer& buffer,
                 std::string* why) {
  if (buffer.dma_buf < 0) {
    *why = buffer.no_dma_buf;
    return nullptr;
  }
  if (verbs.reg_dmabuf_mr == nullptr) {
    *why = "libibverbs is older than rdma-core 34";
    return nullptr;
  }
  ibv_mr* const mr = verbs.reg_dmabuf_mr(pd, buffer.offset, buffer.memory.bytes,
                                         AddressOf(buffer), buffer.dma_buf,
                                         static_cast<int>(kAccess));
  if (mr == nullptr) {
    const int error = errno;
    *why = StrCat(std::strerror(error), ByDmaBufRemedy(error));
  }
  return mr;
}

ibv_mr* ByAddress(const VerbsApi& verbs, ibv_pd* pd, const DeviceBuffer& buffer,
                  std::string* why) {
  ibv_mr* const mr = verbs.reg_mr(pd, buffer.memory.data, buffer.memory.bytes,
                                  AddressOf(buffer), kAccess);
  if (mr == nullptr) {
    const int error = errno;
    *why = StrCat(std::strerror(error), ByAddressRemedy(error));
  }
  return mr;
}

}  // namespace

Result<Registration> RegisterOfDevice(const VerbsApi& verbs, ibv_pd* pd,
                                      const DeviceBuffer& buffer,
                                      std::string* way) {
  std::string no_dma_buf;
  std::string no_peermem;
  *way = "dma-buf";
  ibv_mr* mr = ByDmaBuf(verbs, pd, buffer, &no_dma_buf);
  if (mr == nullptr) {
    *way = "nvidia-peermem";
    mr = ByAddress(verbs, pd, buffer, &no_peermem);
  }
  if (mr != nullptr) return Registration(verbs, mr, buffer.memory);
  return Status(StatusCode::kUnavailable,
                StrCat("cannot register ", buffer.memory.bytes,
                       " bytes of a GPU for RDMA: by dma-buf: ", no_dma_buf,
                       "; by nvidia-peermem: ", no_peermem));
}

}  // namespace gradientflow
