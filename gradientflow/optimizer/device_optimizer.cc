#include "gradientflow/optimizer/device_optimizer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/optimizer/optimizer.h"
#include "gradientflow/optimizer/tiles.h"

namespace gradientflow {
namespace {

// Returns device memory that holds a copy of `values`.
template <typename T>
Result<DeviceMemory> CopyOf(Device& device, Stream& stream,
                            const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  Result<DeviceMemory> memory = device.Allocate(bytes);
  if (!memory.ok() || bytes == 0) return memory;
  GF_RETURN_IF_ERROR(stream.Copy(memory.value().get(), values.data(), bytes));
  GF_RETURN_IF_ERROR(stream.Synchronize());
  return memory;
}

}  // namespace

DeviceOptimizer::DeviceOptimizer(DeviceOptimizerArgs args)
    : args_(std::move(args)) {}

Result<std::unique_ptr<DeviceOptimizer>> DeviceOptimizer::Create(
    DeviceOptimizerArgs args) {
  std::unique_ptr<DeviceOptimizer> made(new DeviceOptimizer(std::move(args)));
  GF_RETURN_IF_ERROR(made->MakeTiles());
  Result<std::unique_ptr<Event>> stepped = made->args_.device->NewEvent();
  if (!stepped.ok()) return stepped.status();
  made->stepped_ = std::move(stepped).value();
  return made;
}

// The tables of tiles never change, so they are copied to the device once.
Status DeviceOptimizer::MakeTiles() {
  const PoolLayout& layout = *args_.layout;
  const TensorTiles cut = CutTiles(layout, args_.chunk_elements);
  std::vector<std::uint8_t> skip(layout.tensors(), 0);
  for (std::size_t i = 0; i < layout.tensors(); ++i) {
    skip[i] = !args_.skip_lars.empty() && args_.skip_lars[i] ? 1 : 0;
  }
  tiles_count_ = cut.tiles.size();
  Device& device = *args_.device;
  Result<std::unique_ptr<Stream>> stream = device.NewStream(false);
  if (!stream.ok()) return stream.status();
  const std::size_t tensors = layout.tensors();
  const struct {
    DeviceMemory* memory;
    Result<DeviceMemory> made;
  } all[] = {
      {&tiles_, CopyOf(device, *stream.value(), cut.tiles)},
      {&first_tile_, CopyOf(device, *stream.value(), cut.first_tile)},
      {&skip_, CopyOf(device, *stream.value(), skip)},
      {&weight_squares_, device.Allocate(tiles_count_ * sizeof(double))},
      {&gradient_squares_, device.Allocate(tiles_count_ * sizeof(double))},
      {&rates_, device.Allocate(tensors * sizeof(float))},
  };
  for (const auto& one : all) {
    if (!one.made.ok()) return one.made.status();
    *one.memory = one.made.value();
  }
  return {};
}

Status DeviceOptimizer::AllocateMomentum() {
  if (momentum_ != nullptr) return {};
  Result<DeviceMemory> memory =
      args_.device->Allocate(args_.layout->elements() * sizeof(float));
  if (!memory.ok()) return memory.status();
  momentum_ = std::move(memory).value();
  return {};
}

Result<DeviceOptimizer::Table*> DeviceOptimizer::TableOf(std::size_t group) {
  const std::size_t bytes = args_.layout->tensors() * sizeof(float*);
  while (tables_.size() <= group) {
    Result<DeviceMemory> weights = args_.device->Allocate(bytes);
    if (!weights.ok()) return weights.status();
    Result<DeviceMemory> host = args_.device->AllocatePinned(bytes);
    if (!host.ok()) return host.status();
    auto table = std::make_unique<Table>();
    table->weights = std::move(weights).value();
    table->host = std::move(host).value();
    tables_.push_back(std::move(table));
  }
  return tables_[group].get();
}

// Uploads the weights' addresses if they differ from those of the last step.
Status DeviceOptimizer::Upload(std::span<float* const> weights, Table& table,
                               Stream& stream) {
  if (std::equal(weights.begin(), weights.end(), table.uploaded.begin(),
                 table.uploaded.end())) {
    return {};
  }
  // The copy of an earlier step, on whichever stream, may still be under way.
  if (std::exchange(table.used, true)) {
    GF_RETURN_IF_ERROR(stepped_->Synchronize());
  }
  table.uploaded.assign(weights.begin(), weights.end());
  const std::size_t bytes = table.uploaded.size() * sizeof(float*);
  if (bytes == 0) return {};
  std::memcpy(table.host.get(), table.uploaded.data(), bytes);
  const Status copied =
      stream.Copy(table.weights.get(), table.host.get(), bytes);
  if (!copied.ok()) table.uploaded.clear();
  return copied;
}

// LARS in two launches: the squares of each tile, then the rate of each tensor
// from the squares of its tiles.
Status DeviceOptimizer::TakeRates(const OptimizerOptions& config,
                                  const Table& table,
                                  const ExchangedOnDevice& exchanged,
                                  Stream& stream) {
  const kernels::ChunkKernelTable& kernels = args_.device->chunk_kernels();
  kernels::TileSquaresArgs squares = {};
  squares.tiles = As<const kernels::Tile>(tiles_);
  squares.count = tiles_count_;
  squares.slots = exchanged.slots;
  squares.weights = As<float* const>(table.weights);
  squares.grads = args_.pool;
  squares.type = args_.type;
  squares.weight_squares = As<double>(weight_squares_);
  squares.gradient_squares = As<double>(gradient_squares_);
  GF_RETURN_IF_ERROR(args_.device->KernelStatus(
      "tile_squares", kernels.tile_squares(squares, stream.native())));
  kernels::LarsRatesArgs rates = {};
  rates.first_tile = As<const std::uint64_t>(first_tile_);
  rates.tensors = args_.layout->tensors();
  rates.weight_squares = squares.weight_squares;
  rates.gradient_squares = squares.gradient_squares;
  rates.skip = As<const std::uint8_t>(skip_);
  rates.lr = config.lr;
  rates.eta = config.lars_eta;
  rates.eps = config.lars_eps;
  rates.weight_decay = config.weight_decay;
  rates.rates = As<float>(rates_);
  rates.grad_scale = 1.0F / exchanged.scale;
  return args_.device->KernelStatus("lars_rates",
                                    kernels.lars_rates(rates, stream.native()));
}

// Waits on the device for the previous step, possibly of another stream,
// because the steps share the tables.
Status DeviceOptimizer::Update(std::size_t group,
                               const OptimizerOptions& config,
                               std::span<float* const> weights,
                               const ExchangedOnDevice& exchanged,
                               Stream& stream) {
  GF_RETURN_IF_ERROR(CheckConfig(config));
  GF_RETURN_IF_ERROR(CheckWeights(*args_.layout, weights));
  GF_RETURN_IF_ERROR(AllocateMomentum());
  const Result<Table*> table = TableOf(group);
  if (!table.ok()) return table.status();
  GF_RETURN_IF_ERROR(stream.Wait(*stepped_));
  Status launched = Upload(weights, *table.value(), stream);
  if (launched.ok()) {
    launched = Launch(config, *table.value(), exchanged, stream);
  }
  const Status recorded = stream.Record(stepped_.get());
  if (!launched.ok()) return launched;
  if (recorded.ok() || recorded.code() == StatusCode::kUnavailable) {
    return recorded;
  }
  // Other codes could say that nothing has changed.
  return {StatusCode::kInternal, recorded.message()};
}

Status DeviceOptimizer::Launch(const OptimizerOptions& config,
                               const Table& table,
                               const ExchangedOnDevice& exchanged,
                               Stream& stream) {
  if (tiles_count_ == 0) return {};
  const bool lars = config.kind == OptimizerOptions::Kind::kLars;
  if (lars) {
    GF_RETURN_IF_ERROR(TakeRates(config, table, exchanged, stream));
  }
  kernels::TileSgdArgs sgd = {};
  sgd.tiles = As<const kernels::Tile>(tiles_);
  sgd.count = tiles_count_;
  sgd.slots = exchanged.slots;
  sgd.skip = exchanged.nonfinite;
  sgd.weights = As<float* const>(table.weights);
  sgd.momentum_buf = As<float>(momentum_);
  sgd.grads = args_.pool;
  sgd.type = args_.type;
  sgd.rates = lars ? As<float>(rates_) : nullptr;
  sgd.lr = config.lr;
  sgd.momentum = config.momentum;
  sgd.weight_decay = config.weight_decay;
  sgd.nesterov = config.nesterov;
  sgd.grad_scale = 1.0F / exchanged.scale;
  return args_.device->KernelStatus(
      "tile_sgd", args_.device->chunk_kernels().tile_sgd(sgd, stream.native()));
}

Result<std::vector<float>> DeviceOptimizer::Momentum(Stream& stream) {
  std::vector<float> copy;
  if (momentum_ == nullptr) return copy;
  copy.resize(args_.layout->elements());
  GF_RETURN_IF_ERROR(stream.Wait(*stepped_));
  GF_RETURN_IF_ERROR(
      stream.Copy(copy.data(), momentum_.get(), copy.size() * sizeof(float)));
  GF_RETURN_IF_ERROR(stream.Synchronize());
  return copy;
}

Status DeviceOptimizer::RestoreMomentum(std::span<const std::byte> bytes,
                                        Stream& stream) {
  GF_RETURN_IF_ERROR(stream.Wait(*stepped_));
  GF_RETURN_IF_ERROR(stream.Synchronize());
  if (bytes.empty()) {
    momentum_.reset();
    return {};
  }
  const std::size_t expected = args_.layout->elements() * sizeof(float);
  if (bytes.size() != expected) {
    return {StatusCode::kInvalidArgument,
            StrCat("momentum: expected 0 or ", expected, " bytes, seen ",
                   bytes.size())};
  }
  GF_RETURN_IF_ERROR(AllocateMomentum());
  GF_RETURN_IF_ERROR(stream.Copy(momentum_.get(), bytes.data(), bytes.size()));
  return stream.Synchronize();
}

}  // namespace gradientflow
