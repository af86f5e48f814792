#include <chrono>
#include <utility>

#include "gradientflow/buckets/dense.h"
#include "gradientflow/csc/chunk_selector.h"
#include "gradientflow/csc/memory.h"
#include "gradientflow/csc/sparse.h"
#include "gradientflow/session/session_impl.h"

// What a session's gradients live in and go through: the pool, the device, the
// aggregator.
namespace gradientflow {

// Where the gradients are, here and on the other ranks.
Status SessionImpl::BuildDevice() {
  OpeningParts opening{executor_.get(), transport_.fabric.get(), clock_.get(),
                       Clock::Time{}};
  if (device_ == nullptr && options_.device != "cpu") {
    Result<std::shared_ptr<Device>> device = std::shared_ptr<Device>();
    // Drivers take their time over the first context, and for kernels that are
    // compiled here.
    RunBeside(opening,
              [&] { device = OpenDevice(options_, transport_.group); });
    if (!device.ok()) return device.status();
    device_ = std::move(device).value();
  }
  std::shared_ptr<const NcclApi> nccl;
  Place place;
  if (device_ != nullptr) {
    place = DeviceSide::PlaceOf(options_, *device_, *logger_, &nccl);
  }
  opening.deadline = clock_->Now() + FromSeconds(options_.join_timeout_seconds);
  const Result<std::vector<Place>> places = ExchangePlaces(opening, place);
  if (!places.ok()) return places.status();
  if (Mixed(places.value())) executor_->SetMixedDtypes();
  if (device_ == nullptr) {
    Result<PoolMemory> pool = PoolMemory::Allocate(
        transport_.arena, layout_.elements() * SizeOf(options_.pool_dtype));
    if (!pool.ok()) return pool.status();
    pool_ = std::move(pool).value();
    return Status();
  }
  DeviceSideParts parts;
  parts.options = &options_;
  parts.layout = &layout_;
  for (const TensorSpec& spec : specs_) {
    parts.skip_lars.push_back(spec.skip_lars);
  }
  parts.arena = transport_.arena;
  parts.opening = opening;
  parts.group = &transport_.group;
  parts.logger = logger_.get();
  parts.recorder = recorder_.get();
  Result<std::unique_ptr<DeviceSide>> side =
      DeviceSide::Create(parts, device_, std::move(nccl), places.value());
  if (!side.ok()) return side.status();
  device_side_ = std::move(side).value();
  return Status();
}

EngineParts SessionImpl::PartsOfEngine() {
  EngineParts parts;
  parts.layout = &layout_;
  parts.names = &names_;
  parts.fabric = transport_.fabric.get();
  parts.executor = executor_.get();
  parts.messages = messages_.get();
  parts.collective = &GradientCollective();
  parts.aggregator = aggregator_.get();
  parts.clock = clock_.get();
  parts.recorder = recorder_.get();
  parts.on_tick = drain_recorder_;
  parts.before_buckets = [this] {
    if (tuner_ != nullptr) tuner_->Send(step_);
  };
  if (device_side_ != nullptr) {
    parts.device = &device_side_->sync();
    parts.on_failure = [this](const Status& why) { device_side_->Fail(why); };
  }
  return parts;
}

Status SessionImpl::BuildAggregator() {
  AggregatorParts parts;
  parts.collective = &GradientCollective();
  parts.layout = &layout_;
  parts.pool = pool().data;
  parts.pool_dtype = options_.pool_dtype;
  parts.wire_dtype = options_.wire_dtype;
  parts.reduce = options_.reduce;
  parts.bucket_bytes = bucket_bytes_;
  parts.recorder = recorder_.get();
  parts.clock = clock_.get();
  if (options_.sparsity <= 0 || layout_.elements() == 0) {
    aggregator_ = std::make_unique<DenseAggregator>(parts);
    return Status();
  }
  const bool plain = options_.residual == ResidualMode::kPlain;
  CscConfig config;
  std::vector<bool> dense;
  for (const TensorSpec& spec : specs_) dense.push_back(spec.always_dense);
  config.selection = {layout_.elements(), options_.chunk_elements,
                      options_.sparsity, options_.warmup_steps,
                      ChunksTouching(layout_, dense, options_.chunk_elements)};
  config.zero_kept = plain || options_.zero_kept;
  config.keep_factor = plain ? 1.0F : options_.momentum;
  Result<std::unique_ptr<CscMemory>> memory = HostCscMemory();
  if (device_side_ != nullptr) {
    memory = DeviceCscMemory(device_.get(),
                             &device_side_->stream(Channel::kGradients));
    if (!memory.ok()) return memory.status();
  }
  Result<std::unique_ptr<SparseAggregator>> sparse =
      SparseAggregator::Create(parts, config, std::move(memory).value());
  if (!sparse.ok()) return sparse.status();
  aggregator_ = std::move(sparse).value();
  return Status();
}

}  // namespace gradientflow
