#include "tests/nccl/allocation_count.h"

#include <utility>

#include "tests/base/heap_count.h"

namespace gradientflow::testing {
namespace {

NcclApi real_api;

// The real function behind a member of NcclApi, not counted.
template <auto kMember>
struct Quiet;
template <typename R, typename... Args, R (*NcclApi::*kMember)(Args...)>
struct Quiet<kMember> {
  static R Call(Args... args) {
    const Uncounted pause;
    return (real_api.*kMember)(args...);
  }
};
template <auto... kMembers>
void Replace(NcclApi* api) {
  ((api->*kMembers = Quiet<kMembers>::Call), ...);
}

const kernels::KernelTable* real_kernels = nullptr;
template <auto kMember>
struct QuietKernel;
template <typename Args,
          int (*kernels::KernelTable::*kMember)(const Args&, void*)>
struct QuietKernel<kMember> {
  static int Call(const Args& args, void* stream) {
    const Uncounted pause;
    return (real_kernels->*kMember)(args, stream);
  }
};

class QuietEvent final : public Event {
 public:
  explicit QuietEvent(std::unique_ptr<Event> real) : real_(std::move(real)) {}
  Result<bool> Query() const override {
    const Uncounted pause;
    return real_->Query();
  }
  Status Synchronize() const override { return real_->Synchronize(); }
  Result<double> SecondsSince(const Event& start) const override {
    return real_->SecondsSince(*static_cast<const QuietEvent&>(start).real());
  }
  void* native() const override { return real_->native(); }
  Event* real() const { return real_.get(); }

 private:
  const std::unique_ptr<Event> real_;
};

class QuietStream final : public Stream {
 public:
  explicit QuietStream(std::unique_ptr<Stream> real) : real_(std::move(real)) {}
  Status Copy(void* dst, const void* src, std::size_t bytes) override {
    const Uncounted pause;
    return real_->Copy(dst, src, bytes);
  }
  Status Fill(void* dst, int byte, std::size_t bytes) override {
    const Uncounted pause;
    return real_->Fill(dst, byte, bytes);
  }
  Status Record(Event* event) override {
    const Uncounted pause;
    return real_->Record(static_cast<QuietEvent*>(event)->real());
  }
  Status Wait(const Event& event) override {
    const Uncounted pause;
    return real_->Wait(*static_cast<const QuietEvent&>(event).real());
  }
  Status Synchronize() override { return real_->Synchronize(); }
  void* native() const override { return real_->native(); }

 private:
  const std::unique_ptr<Stream> real_;
};

class QuietDevice final : public Device {
 public:
  explicit QuietDevice(Device* real) : real_(*real), table_(real->kernels()) {
    using kernels::KernelTable;
    real_kernels = &real_.kernels();
    table_.convert = QuietKernel<&KernelTable::convert>::Call;
    table_.reduce_many = QuietKernel<&KernelTable::reduce_many>::Call;
    table_.find_nonfinite = QuietKernel<&KernelTable::find_nonfinite>::Call;
  }
  DeviceId id() const override { return real_.id(); }
  std::uint64_t unique_id() const override { return real_.unique_id(); }
  std::string description() const override { return real_.description(); }
  const kernels::KernelTable& kernels() const override { return table_; }
  const kernels::ChunkKernelTable& chunk_kernels() const override {
    return real_.chunk_kernels();
  }
  Result<DeviceMemory> Allocate(std::size_t bytes) override {
    return real_.Allocate(bytes);
  }
  Result<DeviceMemory> AllocatePinned(std::size_t bytes) override {
    return real_.AllocatePinned(bytes);
  }
  Result<std::shared_ptr<void>> RegisterHost(void* data,
                                             std::size_t bytes) override {
    return real_.RegisterHost(data, bytes);
  }
  Result<std::unique_ptr<Stream>> NewStream(bool urgent) override {
    Result<std::unique_ptr<Stream>> real = real_.NewStream(urgent);
    if (!real.ok()) return real;
    return std::unique_ptr<Stream>(
        std::make_unique<QuietStream>(std::move(real).value()));
  }
  std::unique_ptr<Stream> Wrap(void* native) override {
    return std::make_unique<QuietStream>(real_.Wrap(native));
  }
  Result<std::unique_ptr<Event>> NewEvent() override {
    Result<std::unique_ptr<Event>> real = real_.NewEvent();
    if (!real.ok()) return real;
    return std::unique_ptr<Event>(
        std::make_unique<QuietEvent>(std::move(real).value()));
  }
  Result<std::unique_ptr<Event>> NewTimedEvent() override {
    Result<std::unique_ptr<Event>> real = real_.NewTimedEvent();
    if (!real.ok()) return real;
    return std::unique_ptr<Event>(
        std::make_unique<QuietEvent>(std::move(real).value()));
  }
  Status RunCurrent(const std::function<Status()>& body) override {
    return real_.RunCurrent(body);
  }
  std::function<void()> CurrentSetter() const override {
    return real_.CurrentSetter();
  }
  MemoryOwner OwnerOf(const void* pointer) const override {
    const Uncounted pause;
    return real_.OwnerOf(pointer);
  }

 private:
  Device& real_;
  kernels::KernelTable table_;
};

}  // namespace

std::shared_ptr<const NcclApi> WithoutCount(
    const std::shared_ptr<const NcclApi>& api) {
  real_api = *api;
  auto quiet = std::make_shared<NcclApi>(*api);
  Replace<&NcclApi::comm_get_async_error, &NcclApi::all_reduce,
          &NcclApi::broadcast, &NcclApi::reduce, &NcclApi::all_gather,
          &NcclApi::reduce_scatter, &NcclApi::send, &NcclApi::recv,
          &NcclApi::group_start, &NcclApi::group_end,
          &NcclApi::red_op_create_pre_mul_sum, &NcclApi::red_op_destroy>(
      quiet.get());
  return quiet;
}

std::unique_ptr<Device> WithoutCount(Device* device) {
  return std::make_unique<QuietDevice>(device);
}

}  // namespace gradientflow::testing
