#include "tests/cuda_shim/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/cuda_shim/cuda_shim.h"
#include "tests/cuda_shim/include/cuda_runtime.h"
#include "tests/cuda_shim/sanitizers.h"

namespace gradientflow::cuda_shim {
namespace {

constexpr std::size_t kBorder = 256;  // Before and after; also the alignment.
constexpr int kPoison = 0xFF;
constexpr unsigned char kCanary = 0xFB;

// One allocation, with pages of its own, so that the host can be locked out.
struct Region {
  unsigned char* pages;
  std::size_t page_bytes;
  std::size_t bytes;  // From pages + kBorder.
  bool managed;
};

[[noreturn]] void Fail(const char* what, const void* pointer) {
  std::fprintf(stderr, "cuda_shim: %s: %p\n", what, pointer);
  std::abort();
}

// All allocations of the process.
class Heap {
 public:
  // Never destroyed: streams of other threads may outlive main().
  static Heap& Get() {
    static auto* const heap = new Heap;
    return *heap;
  }

  void* Add(std::size_t bytes, bool managed) {
    const auto page = static_cast<std::size_t>(getpagesize());
    const std::size_t total = (bytes + 2 * kBorder + page - 1) / page * page;
    void* pages = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    Region region = {static_cast<unsigned char*>(pages), total, bytes, managed};
    unsigned char* data = region.pages + kBorder;
    if (!managed) std::memset(data, kPoison, bytes);
    std::memset(region.pages, kCanary, kBorder);
    std::memset(data + bytes, kCanary, total - kBorder - bytes);
    Guard(region, true);
    const std::lock_guard<std::mutex> lock(mutex_);
    regions_[data] = region;
    Protect(region);
    return data;
  }

  void Remove(void* data, bool managed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = regions_.find(static_cast<unsigned char*>(data));
    if (found == regions_.end() || found->second.managed != managed) {
      Fail("freed what is not allocated", data);
    }
    const Region region = found->second;
    regions_.erase(found);
    mprotect(region.pages, region.page_bytes, PROT_READ | PROT_WRITE);
    Guard(region, false);
    for (std::size_t i = 0; i < region.page_bytes; ++i) {
      const bool inside = i >= kBorder && i - kBorder < region.bytes;
      if (inside) {
        i = kBorder + region.bytes - 1;
      } else if (region.pages[i] != kCanary) {
        Fail("a byte was written outside of an allocation", region.pages + i);
      }
    }
    munmap(region.pages, region.page_bytes);
  }

  void LetHost(bool may) {
    const std::lock_guard<std::mutex> lock(mutex_);
    host_may_ = may;
    ProtectAll();
  }

  void Enter(int change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool was_open = running_ > 0;
    running_ += change;
    if (was_open != (running_ > 0)) ProtectAll();
  }

  // Checks device memory only: tests free managed memory in destructors.
  void CheckLeaks() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [data, region] : regions_) {
      if (!region.managed)
        Fail("cudaMallocFromPoolAsync without cudaFreeAsync", data);
    }
  }

 private:
  void Protect(const Region& region) const {
    const bool open = running_ > 0 || (region.managed && host_may_);
    mprotect(region.pages, region.page_bytes,
             open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
  void ProtectAll() const {
    for (const auto& [data, region] : regions_) Protect(region);
  }
  static void Guard(const Region& region, bool on) {
    Allow(region.pages, region.page_bytes);
    if (!on) return;
    Forbid(region.pages, kBorder);
    Forbid(region.pages + kBorder + region.bytes,
           region.page_bytes - kBorder - region.bytes);
  }

  std::mutex mutex_;
  std::map<unsigned char*, Region> regions_;
  int running_ = 0;
  bool host_may_ = true;
};

struct LeakCheck {
  ~LeakCheck() { Heap::Get().CheckLeaks(); }
} leak_check;

}  // namespace

DeviceAccess::DeviceAccess() { Heap::Get().Enter(1); }
DeviceAccess::~DeviceAccess() { Heap::Get().Enter(-1); }

void* AllocateManaged(std::size_t bytes) {
  void* memory = Heap::Get().Add(bytes, true);
  if (memory == nullptr) Fail("no memory", nullptr);
  return memory;
}
void FreeManaged(void* memory) { Heap::Get().Remove(memory, true); }
void LetHostTouchManaged(bool may) { Heap::Get().LetHost(may); }

}  // namespace gradientflow::cuda_shim

using gradientflow::cuda_shim::DeviceAccess;
using gradientflow::cuda_shim::Heap;

// The attributes set on a pool; the memory belongs to the heap.
struct CUmemPoolHandle_st {
  bool kept = false;
  bool may_make_streams_wait = true;
};

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool,
                              const cudaMemPoolProps* props) {
  if (props->allocType != cudaMemAllocationTypePinned ||
      props->handleTypes != cudaMemHandleTypeNone ||
      props->location.type != cudaMemLocationTypeDevice ||
      props->location.id != 0) {
    return cudaErrorInvalidValue;
  }
  *pool = new CUmemPoolHandle_st;
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  delete pool;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which,
                                    void* value) {
  if (which == cudaMemPoolAttrReleaseThreshold) {
    pool->kept = *static_cast<std::uint64_t*>(value) > 0;
  } else {
    pool->may_make_streams_wait = *static_cast<int*>(value) != 0;
  }
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, std::size_t bytes,
                                    cudaMemPool_t pool, cudaStream_t) {
  if (pool == nullptr || !pool->kept || pool->may_make_streams_wait) {
    gradientflow::cuda_shim::Fail("scratch from a pool that is not set up",
                                  pool);
  }
  *pointer = bytes == 0 ? nullptr : Heap::Get().Add(bytes, false);
  return bytes == 0 || *pointer != nullptr ? cudaSuccess
                                           : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  if (pointer != nullptr) Heap::Get().Remove(pointer, false);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* pointer, int byte, std::size_t bytes,
                            cudaStream_t) {
  const DeviceAccess access;
  if (bytes > 0) std::memset(pointer, byte, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes,
                            cudaMemcpyKind, cudaStream_t) {
  const DeviceAccess access;
  if (bytes > 0) std::memcpy(dst, src, bytes);
  return cudaSuccess;
}
