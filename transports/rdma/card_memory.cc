#include "transports/rdma/card_memory.h"

#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"
#include "transports/rdma/devices.h"

namespace gradientflow {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t RoundUp(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

// Returns null if the kernel does not give that much of such pages; errno says
// why.
std::byte* MapShared(std::size_t bytes, unsigned flags, int* fd) {
  *fd = ::memfd_create("gradientflow", MFD_CLOEXEC | flags);
  if (*fd < 0) return nullptr;
  void* data = MAP_FAILED;
  if (::ftruncate(*fd, static_cast<off_t>(bytes)) == 0) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  }
  if (data != MAP_FAILED) return static_cast<std::byte*>(data);
  const int error = errno;
  ::close(*fd);
  *fd = -1;
  errno = error;
  return nullptr;
}

}  // namespace

Result<CardMemory> CardMemory::Map(std::size_t bytes) {
  CardMemory memory;
  if (bytes == 0) return memory;
  // Mapping huge pages reserves them, so it fails here or not at all.
  if (bytes >= kHugePage) {
    memory.bytes_ = RoundUp(bytes, kHugePage);
    memory.data_ =
        MapShared(memory.bytes_, MFD_HUGETLB | MFD_HUGE_2MB, &memory.fd_);
  }
  if (memory.data_ == nullptr) {
    memory.bytes_ = RoundUp(bytes, kPage);
    memory.data_ = MapShared(memory.bytes_, 0, &memory.fd_);
  }
  if (memory.data_ == nullptr) {
    return Status(StatusCode::kResourceExhausted,
                  StrCat("cannot map ", bytes,
                         " bytes for RDMA: ", std::strerror(errno)));
  }
  CloseInForks(memory.fd_);
  PrivateInForks(memory.data_, memory.bytes_, memory.fd_);
  return memory;
}

CardMemory::~CardMemory() {
  if (data_ == nullptr) return;
  UnmapHere(data_, bytes_);
  CloseHere(fd_);
}

CardMemory& CardMemory::operator=(CardMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

// Completions tell when data is there, and they do not overtake it. So the card
// may write the data itself in any order, which some buses are faster with.
Result<Registration> Registration::Make(const VerbsApi& verbs, ibv_pd* pd,
                                        BufferView memory, CardRights rights,
                                        const std::string& what) {
  unsigned access = 0;
  if (rights == CardRights::kPeersMayWrite) {
    access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
             IBV_ACCESS_RELAXED_ORDERING;
  }
  ibv_mr* const mr =
      verbs.reg_mr(pd, memory.data, memory.bytes,
                   reinterpret_cast<std::uintptr_t>(memory.data), access);
  if (mr != nullptr) return Registration(verbs, mr, memory);
  const int error = errno;
  const std::string why = StrCat("cannot register ", memory.bytes, " bytes of ",
                                 what, " for RDMA: ", std::strerror(error));
  if (error != ENOMEM && error != EPERM && error != EAGAIN) {
    return Status(StatusCode::kUnavailable, why);
  }
  return Status(StatusCode::kResourceExhausted, why + MemlockRemedy());
}

Registration::~Registration() {
  if (mr_ != nullptr) verbs_->dereg_mr(mr_);
}

Registration& Registration::operator=(Registration&& other) noexcept {
  std::swap(verbs_, other.verbs_);
  std::swap(mr_, other.mr_);
  std::swap(memory_, other.memory_);
  return *this;
}

Status CardReach::Add(const VerbsApi& verbs, ibv_pd* pd, BufferView memory,
                      const std::string& what) {
  auto made =
      Registration::Make(verbs, pd, memory, CardRights::kPeersMayWrite, what);
  if (!made.ok()) return made.status();
  registrations_.push_back(std::move(made).value());
  return Status();
}

Result<std::string> CardReach::AddDevice(const VerbsApi& verbs, ibv_pd* pd,
                                         const DeviceBuffer& buffer) {
  std::string way;
  auto made = RegisterOfDevice(verbs, pd, buffer, &way);
  if (!made.ok()) return made.status();
  registrations_.push_back(std::move(made).value());
  return way;
}

void CardReach::Remove(const std::byte* data) {
  std::erase_if(registrations_, [data](const Registration& registration) {
    return registration.data() == data;
  });
}

Result<CardSlots> CardSlots::Make(const VerbsApi& verbs, ibv_pd* pd, int slots,
                                  std::size_t slot_bytes, CardRights rights,
                                  const std::string& what) {
  CardSlots made;
  made.slot_bytes_ = slot_bytes;
  auto memory = CardMemory::Map(static_cast<std::size_t>(slots) * slot_bytes);
  if (!memory.ok()) return memory.status();
  made.memory_ = std::move(memory).value();
  for (int i = 0; i < slots; ++i) {
    std::byte* const data =
        made.memory_.data() + static_cast<std::size_t>(i) * slot_bytes;
    auto registration =
        Registration::Make(verbs, pd, {data, slot_bytes, {}}, rights, what);
    if (!registration.ok()) return registration.status();
    made.registrations_.push_back(std::move(registration).value());
    made.free_.push_back(i);
  }
  return made;
}

bool CardSlots::HasFor(const void* who) const {
  const auto at = std::find(waiting_.begin(), waiting_.end(), who);
  return free_.size() > static_cast<std::size_t>(at - waiting_.begin());
}

std::optional<CardSlots::Slot> CardSlots::Take(const void* who) {
  if (!HasFor(who)) {
    const bool waits =
        std::find(waiting_.begin(), waiting_.end(), who) != waiting_.end();
    if (!waits) waiting_.push_back(who);
    return std::nullopt;
  }
  Leave(who);
  const int index = free_.back();
  free_.pop_back();
  const Registration& of = registrations_[static_cast<std::size_t>(index)];
  return Slot{memory_.data() + static_cast<std::size_t>(index) * slot_bytes_,
              of.local_key(), of.remote_key(), index};
}

}  // namespace gradientflow
