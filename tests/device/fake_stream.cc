#include "tests/device/fake_stream.h"

#include <cstring>
#include <functional>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::testing {
namespace {

Status Invalid(const char* what) {
  return Status(StatusCode::kInvalidArgument, StrCat("fake device: ", what));
}

bool Overlap(const void* a, const void* b, std::size_t bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return x < y ? y - x < bytes : x - y < bytes;
}

}  // namespace

FakeEvent::FakeEvent(std::shared_ptr<FakeState> state, bool timed)
    : state_(std::move(state)), timed_(timed) {}

Point* FakeEvent::point() const {
  const MutexLock lock(mutex_);
  return point_;
}

void FakeEvent::set_point(Point* point) {
  const MutexLock lock(mutex_);
  point_ = point;
}

Result<bool> FakeEvent::Query() const {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kQuery));
  state_->scheduler.Poll();
  const Point* current = point();
  if (current != nullptr && !current->done()) return false;
  // Work before the point may have broken the device.
  GF_RETURN_IF_ERROR(state_->error());
  return true;
}

Status FakeEvent::Synchronize() const {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kSynchronize));
  if (Point* current = point()) {
    state_->scheduler.BeginBlocking();
    current->Await();
    state_->scheduler.EndBlocking();
  }
  return state_->error();
}

Result<double> FakeEvent::SecondsSince(const Event& start) const {
  GF_RETURN_IF_ERROR(state_->Enter(FakeCall::kSecondsSince));
  const auto* from = dynamic_cast<const FakeEvent*>(&start);
  if (from == nullptr || from->state() != state_.get()) {
    return Invalid("not an event of this device");
  }
  if (!timed_ || !from->timed_) return Invalid("an event without a time");
  const Point* begin = from->point();
  const Point* end = point();
  if (begin == nullptr || end == nullptr) return Invalid("nothing recorded");
  if (!begin->done() || !end->done()) return Invalid("an event is not reached");
  GF_RETURN_IF_ERROR(state_->error());
  return end->seconds() - begin->seconds();
}

FakeStream::FakeStream(std::shared_ptr<FakeQueue> queue, bool owned)
    : queue_(std::move(queue)), owned_(owned) {}

FakeStream::~FakeStream() {
  if (owned_) queue_->Stop();
}

Status FakeStream::Enter(FakeCall call) {
  if (queue_ == nullptr) return Invalid("not a stream of this device");
  ++calls_;
  return queue_->state().Enter(call);
}

Status FakeStream::CheckCopy(const void* dst, const void* src,
                             std::size_t bytes) {
  if (dst == nullptr || src == nullptr) return Invalid("a copy of nullptr");
  if (Overlap(dst, src, bytes)) return Invalid("a copy onto itself");
  const FakeMemory& memory = queue_->state().memory;
  bool pageable = false;
  bool pinned = false;
  for (const auto& [what, at] :
       {std::pair("copy to", dst), std::pair("copy from", src)}) {
    const Result<FakeMemory::Kind> kind = memory.Find(what, at, bytes);
    GF_RETURN_IF_ERROR(kind.status());
    pageable |= kind.value() == FakeMemory::Kind::kPageable;
    pinned |= kind.value() == FakeMemory::Kind::kPinned;
  }
  if (pinned) queue_->state().bus_bytes.fetch_add(bytes);
  if (pageable) queue_->state().pageable_copies.fetch_add(1);
  return Status();
}

Status FakeStream::Copy(void* dst, const void* src, std::size_t bytes) {
  GF_RETURN_IF_ERROR(Enter(FakeCall::kCopy));
  if (bytes == 0) return Status();
  GF_RETURN_IF_ERROR(CheckCopy(dst, src, bytes));
  const auto copy = [=] {
    std::memcpy(dst, src, bytes);
    return Status();
  };
  return queue_->Push(FakeTask{nullptr, copy, nullptr});
}

Status FakeStream::Fill(void* dst, int byte, std::size_t bytes) {
  GF_RETURN_IF_ERROR(Enter(FakeCall::kFill));
  if (bytes == 0) return Status();
  const auto kind = queue_->state().memory.Find("fill", dst, bytes);
  GF_RETURN_IF_ERROR(kind.status());
  if (kind.value() == FakeMemory::Kind::kPageable) {
    return Invalid("a fill of memory that is not the device's");
  }
  const auto fill = [=] {
    std::memset(dst, byte, bytes);
    return Status();
  };
  return queue_->Push(FakeTask{nullptr, fill, nullptr});
}

Status FakeStream::Record(Event* event) {
  GF_RETURN_IF_ERROR(Enter(FakeCall::kRecord));
  auto* fake = dynamic_cast<FakeEvent*>(event);
  if (fake == nullptr || fake->state() != &queue_->state()) {
    return Invalid("not an event of this device");
  }
  Point* point = queue_->state().NewPoint();
  GF_RETURN_IF_ERROR(queue_->Push(FakeTask{nullptr, nullptr, point}));
  fake->set_point(point);
  return Status();
}

Status FakeStream::Wait(const Event& event) {
  GF_RETURN_IF_ERROR(Enter(FakeCall::kWait));
  const auto* fake = dynamic_cast<const FakeEvent*>(&event);
  if (fake == nullptr || fake->state() != &queue_->state()) {
    return Invalid("not an event of this device");
  }
  Point* point = fake->point();
  if (point == nullptr) return Status();
  return queue_->Push(FakeTask{point, nullptr, nullptr});
}

Status FakeStream::Synchronize() {
  GF_RETURN_IF_ERROR(Enter(FakeCall::kSynchronize));
  return queue_->Drain();
}

}  // namespace gradientflow::testing
