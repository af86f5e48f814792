#include "gradientflow/base/fork.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "gradientflow/base/mutex.h"

namespace gradientflow {
namespace internal {

std::atomic<std::uint32_t> fork_depth{0};

}  // namespace internal

namespace {

constexpr int kBits = 64;

struct SharedRange {
  void* data;
  std::size_t bytes;
  int fd;
};

struct Registry {
  // Held across fork(), so that the child finds the tables in a consistent
  // state.
  Mutex mutex;
  // One bit per descriptor, by its number.
  std::vector<std::uint64_t> descriptors GF_GUARDED_BY(mutex);
  std::vector<SharedRange> ranges GF_GUARDED_BY(mutex);
  std::vector<const void*> left_behind GF_GUARDED_BY(mutex);
};

Registry& TheRegistry();

void BeforeFork() GF_NO_THREAD_SAFETY_ANALYSIS { TheRegistry().mutex.Lock(); }
void InParent() GF_NO_THREAD_SAFETY_ANALYSIS { TheRegistry().mutex.Unlock(); }

// Async-signal-safe, except for the lock, which this thread has held since
// before the fork.
void InChild() GF_NO_THREAD_SAFETY_ANALYSIS {
  const int saved = errno;
  Registry& registry = TheRegistry();
  internal::fork_depth.fetch_add(1);
  // Memory comes first, because mapping it needs the descriptors.
  for (const SharedRange& range : registry.ranges) {
    void* const mapped =
        ::mmap(range.data, range.bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, range.fd, 0);
    // If that failed, it is better that a write ends this process than that it
    // corrupts the data of another.
    if (mapped == MAP_FAILED) ::mprotect(range.data, range.bytes, PROT_READ);
  }
  registry.ranges.clear();
  for (std::size_t word = 0; word < registry.descriptors.size(); ++word) {
    for (int bit = 0; bit < kBits; ++bit) {
      if ((registry.descriptors[word] >> bit & 1) == 0) continue;
      ::close(static_cast<int>(word) * kBits + bit);
    }
    registry.descriptors[word] = 0;
  }
  registry.mutex.Unlock();
  errno = saved;
}

Registry* MakeRegistry() {
  ::pthread_atfork(BeforeFork, InParent, InChild);
  return new Registry;
}

Registry& TheRegistry() {
  // Never destroyed, because registered objects may outlive static ones.
  static Registry* const registry = MakeRegistry();
  return *registry;
}

}  // namespace

ProcessMark::ProcessMark() {
  TheRegistry();
  depth_ = internal::fork_depth.load(std::memory_order_relaxed);
}

void CloseInForks(int fd) {
  Registry& registry = TheRegistry();
  const auto word = static_cast<std::size_t>(fd) / kBits;
  MutexLock lock(registry.mutex);
  if (word >= registry.descriptors.size()) {
    registry.descriptors.resize(word + 1);
  }
  registry.descriptors[word] |= std::uint64_t{1} << fd % kBits;
}

void CloseHere(int fd) {
  Registry& registry = TheRegistry();
  // With the lock held: the number may belong to another descriptor right after
  // close(), which forks must not close.
  MutexLock lock(registry.mutex);
  registry.descriptors[static_cast<std::size_t>(fd) / kBits] &=
      ~(std::uint64_t{1} << fd % kBits);
  ::close(fd);
}

void KeepInForks(int fd) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.descriptors[static_cast<std::size_t>(fd) / kBits] &=
      ~(std::uint64_t{1} << fd % kBits);
}

void PrivateInForks(void* data, std::size_t bytes, int fd) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.ranges.push_back({data, bytes, fd});
}

void UnmapHere(void* data, std::size_t bytes) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  std::erase_if(registry.ranges, [data](const SharedRange& range) {
    return range.data == data;
  });
  ::munmap(data, bytes);
}

void LeaveBehind(const void* object) {
  Registry& registry = TheRegistry();
  MutexLock lock(registry.mutex);
  registry.left_behind.push_back(object);
}

}  // namespace gradientflow
