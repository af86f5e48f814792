#include "transports/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 45;

Status MapError(std::size_t bytes, const char* what) {
  return Status(StatusCode::kResourceExhausted,
                StrCat("shared memory of arena_bytes = ", bytes, ": ", what,
                       ": ", std::strerror(errno)));
}

// Maps at a multiple of kHugePage, where the kernel can use huge pages.
Result<std::byte*> MapAligned(int fd, std::size_t bytes) {
  void* const reserved =
      ::mmap(nullptr, bytes + kHugePage, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MapError(bytes, "mmap");
  std::byte* const begin = static_cast<std::byte*>(reserved);
  const std::size_t skip =
      (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) %
      kHugePage;
  void* const mapped = ::mmap(begin + skip, bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const Status why = MapError(bytes, "mmap");
    ::munmap(reserved, bytes + kHugePage);
    return why;
  }
  if (skip > 0) ::munmap(begin, skip);
  if (skip < kHugePage) {
    ::munmap(begin + skip + bytes, kHugePage - skip);
  }
  // Best effort: a kernel without huge pages for shared memory refuses.
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

Mapping::Mapping(Fd fd, std::byte* data, std::size_t bytes)
    : fd_(std::move(fd)), data_(data), bytes_(bytes) {
  if (fd_.valid()) PrivateInForks(data_, bytes_, fd_.get());
}

Mapping::~Mapping() {
  // In a forked child other memory may be at these addresses.
  if (!process_.forked()) UnmapHere(data_, bytes_);
}

Result<std::shared_ptr<Mapping>> Mapping::Create(std::size_t bytes) {
  if (bytes == 0 || bytes % 4096 != 0 || bytes > kMaxBytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("shared memory: expected a multiple of 4096 up to ",
                         kMaxBytes, " bytes, seen ", bytes));
  }
  Fd fd(::memfd_create("gradientflow", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return MapError(bytes, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return MapError(bytes, "ftruncate");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return MapError(bytes, "fcntl(F_ADD_SEALS)");
  }
  Result<std::byte*> data = MapAligned(fd.get(), bytes);
  if (!data.ok()) return data.status();
  return std::shared_ptr<Mapping>(
      new Mapping(std::move(fd), data.value(), bytes));
}

// The seal is checked before the size: from then on the peer cannot shrink it.
Result<std::shared_ptr<Mapping>> Mapping::FromPeer(const Fd& memory,
                                                   std::uint64_t bytes) {
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(StatusCode::kDataLoss,
                  StrCat("expected a memfd sealed against shrinking, seen ",
                         seals < 0 ? "no memfd" : "other seals"));
  }
  struct stat info = {};
  if (::fstat(memory.get(), &info) != 0) return MapError(bytes, "fstat");
  if (bytes == 0 || bytes % 4096 != 0 || bytes > kMaxBytes ||
      static_cast<std::uint64_t>(info.st_size) != bytes) {
    return Status(StatusCode::kDataLoss, StrCat("expected a memfd of ", bytes,
                                                " bytes, seen ", info.st_size));
  }
  Result<std::byte*> data = MapAligned(memory.get(), bytes);
  if (!data.ok()) return data.status();
  // A core dump then contains this process's own arena only.
  ::madvise(data.value(), bytes, MADV_DONTDUMP);
  if (::madvise(data.value(), bytes, MADV_DONTFORK) != 0) {
    const Status why = MapError(bytes, "madvise(MADV_DONTFORK)");
    ::munmap(data.value(), bytes);
    return why;
  }
  return std::shared_ptr<Mapping>(new Mapping(Fd(), data.value(), bytes));
}

void Mapping::Discard(std::uint64_t offset, std::size_t bytes) const {
  if (::madvise(data_ + offset, bytes, MADV_REMOVE) != 0) {
    std::memset(data_ + offset, 0, bytes);
  }
}

}  // namespace gradientflow
