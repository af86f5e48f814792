#include "tests/device/fake_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "tests/device/fake_kernels.h"
#include "tests/device/fake_queue.h"
#include "tests/device/fake_state.h"
#include "tests/device/fake_stream.h"

namespace gradientflow::testing {
namespace {

constexpr std::align_val_t kAlignment{256};

// A larger block comes from the system, which has zeroed it, and only its
// beginning is filled: to touch all of a staging buffer would take most of a
// test's time.
constexpr std::size_t kMostFilled = std::size_t{1} << 20;
constexpr std::size_t kFilledBeginning = std::size_t{64} << 10;

std::shared_ptr<void> Block(std::size_t bytes) {
  if (bytes <= kMostFilled) {
    return {::operator new(bytes, kAlignment, std::nothrow),
            [](void* data) { ::operator delete(data, kAlignment); }};
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  return {data, [bytes](void* begin) { munmap(begin, bytes); }};
}

// Memory of exactly `bytes` (but never none) if that is not much, so that the
// address sanitizer sees the first byte past the end.
Result<DeviceMemory> NewMemory(const std::shared_ptr<FakeState>& state,
                               std::size_t bytes, FakeMemory::Kind kind,
                               int fill) {
  bytes = std::max<std::size_t>(bytes, 1);
  const std::size_t free = state->memory.free_bytes();
  std::shared_ptr<void> block;
  const bool on_device = kind == FakeMemory::Kind::kDevice;
  if (on_device && state->options.dma_buf && bytes <= free) {
    block = {state->files.Map(bytes),
             [state](void* data) { state->files.Unmap(data); }};
  } else if (!on_device || bytes <= free) {
    block = Block(bytes);
  }
  if (block == nullptr) {
    return Status(
        StatusCode::kResourceExhausted,
        StrCat("fake device: ", bytes, " bytes asked for, ", free, " free"));
  }
  if (bytes <= kMostFilled) {
    std::memset(block.get(), fill, bytes);
  } else if (fill != 0) {
    std::memset(block.get(), fill, kFilledBeginning);
  }
  GF_RETURN_IF_ERROR(state->memory.Add(block.get(), bytes, kind));
  const auto release = [state, block](std::byte* memory) {
    state->memory.Remove(memory);
  };
  return DeviceMemory(static_cast<std::byte*>(block.get()), release);
}

std::uint64_t NewUniqueId() {
  static std::atomic<std::uint64_t> last{0};
  // Far from any value that a test would choose.
  return (std::uint64_t{0xFA4E} << 48) + ++last;
}

thread_local int current_of_thread = -1;

}  // namespace

FakeDevice::FakeDevice(const FakeOptions& options)
    : unique_id_(options.unique_id != 0 ? options.unique_id : NewUniqueId()),
      again_(false),
      state_(std::make_shared<FakeState>(options)),
      default_queue_(std::make_shared<FakeQueue>(state_)) {
  default_queue_->BecomeDefault();
}

FakeDevice::FakeDevice(std::uint64_t unique_id,
                       std::shared_ptr<FakeState> state,
                       std::shared_ptr<FakeQueue> default_queue)
    : unique_id_(unique_id),
      again_(true),
      state_(std::move(state)),
      default_queue_(std::move(default_queue)) {}

FakeDevice::~FakeDevice() {
  if (!again_) default_queue_->Stop();
}

std::unique_ptr<FakeDevice> FakeDevice::Again() const {
  return std::unique_ptr<FakeDevice>(
      new FakeDevice(unique_id_, state_, default_queue_));
}

DeviceId FakeDevice::id() const { return state_->options.id; }

std::string FakeDevice::description() const {
  return StrCat("fake:", state_->options.id.index);
}

const kernels::KernelTable& FakeDevice::kernels() const {
  return FakeKernels();
}

const kernels::ChunkKernelTable& FakeDevice::chunk_kernels() const {
  return FakeChunkKernels();
}

Result<DeviceMemory> FakeDevice::Allocate(std::size_t bytes) {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kAllocate));
  return NewMemory(state_, bytes, FakeMemory::Kind::kDevice, 0);
}

Result<DeviceMemory> FakeDevice::AllocatePinned(std::size_t bytes) {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kAllocatePinned));
  return NewMemory(state_, bytes, FakeMemory::Kind::kPinned, kFakePoison);
}

Result<std::shared_ptr<void>> FakeDevice::RegisterHost(void* data,
                                                       std::size_t bytes) {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kRegisterHost));
  if (bytes == 0) return std::shared_ptr<void>();
  if (data == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("fake device: ", bytes, " bytes at nullptr"));
  }
  GF_RETURN_IF_ERROR(
      state_->memory.Add(data, bytes, FakeMemory::Kind::kPinned));
  const auto release = [state = state_](void* memory) {
    state->memory.Remove(memory);
  };
  return std::shared_ptr<void>(data, release);
}

Result<std::unique_ptr<Stream>> FakeDevice::NewStream(bool /*urgent*/) {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kNewStream));
  auto queue = std::make_shared<FakeQueue>(state_);
  {
    const MutexLock lock(mutex_);
    std::erase_if(queues_, [](const auto& one) { return one.expired(); });
    queues_.push_back(queue);
  }
  return std::unique_ptr<Stream>(
      std::make_unique<FakeStream>(std::move(queue), true));
}

std::unique_ptr<Stream> FakeDevice::Wrap(void* native) {
  std::shared_ptr<FakeQueue> found;
  if (native == nullptr || native == default_queue_.get()) {
    found = default_queue_;
  } else {
    const MutexLock lock(mutex_);
    for (const auto& one : queues_) {
      auto queue = one.lock();
      if (queue.get() == native) found = std::move(queue);
    }
  }
  return std::make_unique<FakeStream>(std::move(found), false);
}

Result<std::unique_ptr<Event>> FakeDevice::NewEvent() {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kNewEvent));
  return std::unique_ptr<Event>(std::make_unique<FakeEvent>(state_, false));
}

Result<std::unique_ptr<Event>> FakeDevice::NewTimedEvent() {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kNewEvent));
  return std::unique_ptr<Event>(std::make_unique<FakeEvent>(state_, true));
}

void FakeDevice::SetWorkSeconds(Stream* stream, double seconds) {
  FakeQueue::Of(stream->native())->SetWorkSeconds(seconds);
}

void FakeDevice::SetTime(double seconds) { state_->host_seconds = seconds; }

Result<DmaBuf> FakeDevice::ExportDmaBuf(const void* data, std::size_t bytes) {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kExportDmaBuf));
  if (!state_->options.dma_buf) return Device::ExportDmaBuf(data, bytes);
  return state_->files.Export(data, bytes);
}

Status FakeDevice::FlushRemoteWrites() {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kFlushRemoteWrites));
  if (!state_->options.flush) return Device::FlushRemoteWrites();
  return state_->options.flush();
}

Status FakeDevice::RunCurrent(const std::function<Status()>& body) {
  const int before = std::exchange(current_of_thread, id().index);
  const Status status = body();
  current_of_thread = before;
  return status;
}

std::function<void()> FakeDevice::CurrentSetter() const {
  return [index = id().index] { current_of_thread = index; };
}

Status FakeDevice::KernelStatus(std::string_view kernel, int error) const {
  if (error != 0) GF_RETURN_IF_ERROR(state_->error());
  return Device::KernelStatus(kernel, error);
}

int FakeDevice::CurrentOfThread() { return current_of_thread; }

MemoryOwner FakeDevice::OwnerOf(const void* pointer) const {
  const auto kind = state_->memory.Find("OwnerOf", pointer, 1);
  if (kind.ok() && kind.value() == FakeMemory::Kind::kDevice) {
    return MemoryOwner::kThisDevice;
  }
  const FakeDevice* other = other_.load();
  return other != nullptr && other->Owns(pointer) ? MemoryOwner::kOtherDevice
                                                  : MemoryOwner::kHost;
}

void FakeDevice::HoldStreams() { state_->scheduler.Hold(); }
void FakeDevice::ReleaseStreams() { state_->scheduler.Release(); }

std::function<void()> FakeDevice::HoldStream(Stream* stream) {
  Point* point = state_->NewPoint();
  const Status status =
      FakeQueue::Of(stream->native())->Push(FakeTask{point, nullptr, nullptr});
  if (!status.ok()) std::abort();  // The stream is destroyed.
  // The closure holds the state, which may outlive the device.
  return [state = state_, point] { point->Finish(); };
}

std::uint64_t FakeDevice::count(FakeCall call) const {
  return state_->counts[static_cast<int>(call)].load();
}

std::uint64_t FakeDevice::pageable_copies() const {
  return state_->pageable_copies.load();
}

std::uint64_t FakeDevice::bus_bytes() const { return state_->bus_bytes.load(); }

void FakeDevice::FailCall(FakeCall call, std::uint64_t nth, Status why) {
  state_->PlanCall(call, nth, std::move(why));
}

void FakeDevice::FailWork(std::uint64_t nth, Status why) {
  state_->PlanWork(nth, std::move(why));
}

}  // namespace gradientflow::testing
