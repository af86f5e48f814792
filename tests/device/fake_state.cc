#include "tests/device/fake_state.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::testing {
namespace {

using Clock = std::chrono::steady_clock;

// As long as 200 yields last on a core that is free.
constexpr std::chrono::microseconds kLongestLag(200);

// xorshift64; each worker has its own state, so that they share nothing.
std::uint64_t NextRandom(std::uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}

}  // namespace

void FakeScheduler::Release() {
  held_.store(false, std::memory_order_release);
  WakeAll();
}

void FakeScheduler::Poll() {
  if (lag_ != FakeLag::kLazy) return;
  polls_.fetch_add(1, std::memory_order_relaxed);
  WakeAll();
}

void FakeScheduler::BeginBlocking() {
  blocked_.fetch_add(1, std::memory_order_relaxed);
  WakeAll();
}

Gate* FakeScheduler::NewGate() {
  const MutexLock lock(mutex_);
  return &gates_.emplace_back();
}

void FakeScheduler::WakeAll() {
  const MutexLock lock(mutex_);
  for (Gate& gate : gates_) gate.Post();
}

FakeScheduler::Turn FakeScheduler::NewTurn(std::uint64_t seed) const {
  Turn turn = {seed * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d,
               polls_.load(std::memory_order_relaxed)};
  for (int i = 0; i < 8; ++i) NextRandom(&turn.random);
  return turn;
}

bool FakeScheduler::MayRun(Turn* turn) const {
  if (held_.load(std::memory_order_acquire)) return false;
  if (lag_ != FakeLag::kLazy) return true;
  if (blocked_.load(std::memory_order_relaxed) > 0) return true;
  const std::uint64_t polls = polls_.load(std::memory_order_relaxed);
  return std::exchange(turn->polls_seen, polls) != polls;
}

void FakeScheduler::AwaitTurn(Gate* gate, Turn* turn) const {
  while (!MayRun(turn)) gate->Wait();
  if (lag_ != FakeLag::kRandom) return;
  // Mostly none, sometimes many.
  const std::uint64_t random = NextRandom(&turn->random) >> 32;
  const std::uint64_t yields = random % 4 == 0 ? (random >> 2) % 200 : 0;
  // On a busy core a single yield may last for milliseconds, and is enough.
  const auto enough = Clock::now() + kLongestLag;
  for (std::uint64_t i = 0; i < yields && Clock::now() < enough; ++i) {
    std::this_thread::yield();
  }
}

std::size_t FakeMemory::free_bytes() const {
  const MutexLock lock(mutex_);
  return limit_ - used_;
}

Status FakeMemory::Add(const void* begin, std::size_t bytes, Kind kind) {
  const auto at = reinterpret_cast<std::uintptr_t>(begin);
  const MutexLock lock(mutex_);
  const auto next = ranges_.lower_bound(at);
  const bool overlaps_next = next != ranges_.end() && next->first < at + bytes;
  const bool overlaps_last =
      next != ranges_.begin() &&
      std::prev(next)->first + std::prev(next)->second.bytes > at;
  if (overlaps_next || overlaps_last) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("fake device: ", bytes, " bytes at ", begin,
                         " overlap memory of the device, or pinned memory"));
  }
  if (kind == Kind::kDevice) used_ += bytes;
  ranges_.emplace(at, Range{bytes, kind});
  return Status();
}

void FakeMemory::Remove(const void* begin) {
  const MutexLock lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(begin));
  if (found == ranges_.end()) return;
  if (found->second.kind == Kind::kDevice) used_ -= found->second.bytes;
  ranges_.erase(found);
}

Result<FakeMemory::Kind> FakeMemory::Find(const char* what, const void* begin,
                                          std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(begin);
  const MutexLock lock(mutex_);
  const auto next = ranges_.upper_bound(at);
  if (next != ranges_.begin()) {
    const auto& [start, range] = *std::prev(next);
    if (at - start < range.bytes) {
      if (bytes <= range.bytes - (at - start)) return range.kind;
      return Status(StatusCode::kInvalidArgument,
                    StrCat("fake device: ", what, ": ", bytes, " bytes at ",
                           begin, ", byte ", at - start, " of memory of ",
                           range.bytes, ", overrun it"));
    }
  }
  if (next != ranges_.end() && next->first - at < bytes) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("fake device: ", what, ": ", bytes, " bytes at ",
                         begin, " run into memory that begins later"));
  }
  return Kind::kPageable;
}

void* FakeFiles::Map(std::size_t bytes) {
  const int fd = ::memfd_create("fake device", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  void* data = MAP_FAILED;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (data == MAP_FAILED) {
    ::close(fd);
    return nullptr;
  }
  const MutexLock lock(mutex_);
  files_[reinterpret_cast<std::uintptr_t>(data)] = {fd, bytes};
  return data;
}

void FakeFiles::Unmap(const void* begin) {
  const MutexLock lock(mutex_);
  const auto found = files_.find(reinterpret_cast<std::uintptr_t>(begin));
  if (found == files_.end()) return;
  ::munmap(const_cast<void*>(begin), found->second.bytes);
  ::close(found->second.fd);
  files_.erase(found);
}

Result<DmaBuf> FakeFiles::Export(const void* data, std::size_t bytes) const {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const MutexLock lock(mutex_);
  const auto next = files_.upper_bound(at);
  if (next != files_.begin()) {
    const auto& [begin, file] = *std::prev(next);
    if (at - begin <= file.bytes && bytes <= file.bytes - (at - begin)) {
      return DmaBuf{Fd(::dup(file.fd)), at - begin};
    }
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat("fake device: ", bytes, " bytes at ", data,
                       " are not in memory that can be exported"));
}

Status FakeState::Enter(FakeCall call) {
  counts[static_cast<int>(call)].fetch_add(1, std::memory_order_relaxed);
  const bool counts_as_any =
      call != FakeCall::kQuery && call != FakeCall::kSecondsSince;
  if (counts_as_any) {
    counts[static_cast<int>(FakeCall::kAny)].fetch_add(
        1, std::memory_order_relaxed);
  }
  if (call_planned_.load(std::memory_order_relaxed)) {
    const MutexLock lock(mutex_);
    const bool any = call_plan_.call == FakeCall::kAny && counts_as_any;
    if (!call_plan_.why.ok() && (any || call_plan_.call == call) &&
        call_plan_.left-- == 0) {
      call_planned_.store(false, std::memory_order_relaxed);
      return std::exchange(call_plan_, Plan()).why;
    }
  }
  return error();
}

Status FakeState::error() const {
  if (!failed_.load(std::memory_order_acquire)) return Status();
  const MutexLock lock(mutex_);
  return error_;
}

void FakeState::Fail(const Status& why) {
  const MutexLock lock(mutex_);
  if (error_.ok()) error_ = Status(StatusCode::kUnavailable, why.message());
  failed_.store(true, std::memory_order_release);
}

Point* FakeState::NewPoint() {
  const MutexLock lock(points_mutex_);
  return &points_.emplace_back();
}

Status FakeState::NextWork() {
  if (!work_planned_.load(std::memory_order_acquire)) return Status();
  const MutexLock lock(mutex_);
  if (work_plan_.why.ok() || work_plan_.left-- > 0) return Status();
  work_planned_.store(false, std::memory_order_relaxed);
  return std::exchange(work_plan_, Plan()).why;
}

void FakeState::PlanCall(FakeCall call, std::uint64_t nth, Status why) {
  const MutexLock lock(mutex_);
  call_plan_ = Plan{call, nth, std::move(why)};
  call_planned_.store(true, std::memory_order_relaxed);
}

void FakeState::PlanWork(std::uint64_t nth, Status why) {
  const MutexLock lock(mutex_);
  work_plan_ = Plan{FakeCall::kAny, nth, std::move(why)};
  work_planned_.store(true, std::memory_order_release);
}

}  // namespace gradientflow::testing
