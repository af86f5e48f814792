#include "gradientflow/session/device_pool.h"

#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/session/engine.h"

namespace gradientflow {

Result<std::unique_ptr<GradientPool>> DevicePool::Create(
    const GradientPoolArgs& args) {
  std::unique_ptr<DevicePool> pool(new DevicePool(args));
  GF_RETURN_IF_ERROR(pool->Build());
  return std::unique_ptr<GradientPool>(std::move(pool));
}

Status DevicePool::Build() {
  Device& device = *path().device();
  bytes_ = args_.layout->elements() * SizeOf(args_.options->pool_dtype);
  Result<DeviceMemory> memory = path().Allocate(bytes_);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(memory).value();
  args_.core->progress().Do([this] { path().Register(memory_.get(), bytes_); });
  if (path().by_nccl() && args_.options->sparsity > 0) {
    for (auto* stream : {&before_wire_, &after_wire_}) {
      Result<std::unique_ptr<Stream>> made = device.NewStream(/*urgent=*/true);
      if (!made.ok()) return made.status();
      *stream = std::move(made).value();
    }
  }
  Stream& wire = path().wire(Channel::kGradients);
  if (path().by_nccl()) {
    wire_times_ = std::make_unique<WireTimes>(&device, &wire);
  }
  if (path().by_nccl() && args_.options->sparsity <= 0) {
    Result<std::unique_ptr<StepEnd>> end = StepEnd::Create(&device, &wire);
    if (!end.ok()) return end.status();
    end_ = std::move(end).value();
  }
  Result<std::unique_ptr<DeviceSync>> sync =
      DeviceSync::Create(device, Engine::SectionEndsOf(*args_.layout));
  if (!sync.ok()) return sync.status();
  sync_ = std::move(sync).value();
  handover_.emplace(*sync_);

  DeviceOptimizerArgs optimizer;
  optimizer.layout = args_.layout;
  optimizer.device = &device;
  optimizer.pool = memory_.get();
  optimizer.type = args_.options->pool_dtype;
  optimizer.chunk_elements =
      args_.options->sparsity > 0 ? args_.options->chunk_elements : 0;
  optimizer.skip_lars = args_.skip_lars;
  Result<std::unique_ptr<DeviceOptimizer>> made =
      DeviceOptimizer::Create(std::move(optimizer));
  if (!made.ok()) return made.status();
  optimizer_ = std::move(made).value();
  return Status();
}

DevicePool::~DevicePool() {
  if (memory_.get() == nullptr) return;
  args_.core->progress().Do([this] {
    path().Deregister(memory_.get());
    for (const DeviceMemory& memory : for_wire_) {
      path().Deregister(memory.get());
    }
  });
}

// What only this object still holds is given back first.
Result<DeviceMemory> DevicePool::AllocateForWire(std::size_t bytes) {
  std::erase_if(for_wire_, [this](const DeviceMemory& memory) {
    if (memory.use_count() > 1) return false;
    path().Deregister(memory.get());
    return true;
  });
  Result<DeviceMemory> memory = path().Allocate(bytes);
  if (!memory.ok()) return memory;
  path().Register(memory.value().get(), bytes);
  for_wire_.push_back(memory.value());
  return memory;
}

BufferView DevicePool::view() const {
  return {memory_.get(), bytes_, path().device()->id()};
}

Result<CscMemories> DevicePool::NewCscMemories() {
  Stream* wire = &path().wire(Channel::kGradients);
  Device* device = path().device().get();
  if (before_wire_ == nullptr) {
    auto all = DeviceCscMemory({device, wire, sync_.get()});
    if (!all.ok()) return all.status();
    return CscMemories{std::move(all).value(), nullptr};
  }
  DeviceCscArgs of_before = {device, before_wire_.get(), sync_.get(), wire};
  of_before.for_wire = [this](std::size_t bytes) {
    return AllocateForWire(bytes);
  };
  auto before = DeviceCscMemory(of_before);
  if (!before.ok()) return before.status();
  auto after = DeviceCscMemory({device, after_wire_.get(), sync_.get(), wire});
  if (!after.ok()) return after.status();
  return CscMemories{std::move(before).value(), std::move(after).value()};
}

Status DevicePool::CheckGroup(GroupId group) const {
  if (group == 0) return Status();
  return Status(
      StatusCode::kUnimplemented,
      "gradients on a device: a communicator takes one session of all ranks at "
      "a time; open another communicator for this one");
}

Status DevicePool::Update(std::size_t index, const OptimizerGroup& group,
                          const Sent& sent) {
  const ExchangedOnDevice exchanged = {sent.device_slots, sent.device_nonfinite,
                                       sent.gradient_scale};
  return optimizer_->Update(index, group.config, group.weights, exchanged,
                            sync_->producer());
}

Result<std::span<const float>> DevicePool::Momentum(
    std::vector<float>* scratch) {
  Result<std::vector<float>> momentum = optimizer_->Momentum(sync_->producer());
  if (!momentum.ok()) return momentum.status();
  *scratch = std::move(momentum).value();
  return std::span<const float>(*scratch);
}

Status DevicePool::RestoreMomentum(std::span<const std::byte> momentum) {
  return optimizer_->RestoreMomentum(momentum, sync_->producer());
}

bool DevicePool::Close() {
  WorkEnd end(*path().device());
  end.Add(optimizer_->stepped());
  end.Add(sync_->producer());
  for (Stream* stream : {before_wire_.get(), after_wire_.get()}) {
    if (stream != nullptr) end.Add(*stream);
  }
  bool ended = false;
  std::optional<Clock::Time> since;
  args_.core->progress().Do([&] { path().AddWork(Channel::kGradients, &end); });
  args_.core->progress().Drive([&] {
    ended = !path().aborting() && end.Reached();
    return ended || path().GivesUp(end, &since);
  });
  if (!ended) path().LogKept(StrCat("a pool of ", bytes_, " bytes"), end);
  return ended;
}

}  // namespace gradientflow
