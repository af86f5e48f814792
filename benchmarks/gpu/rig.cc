#include "benchmarks/gpu/rig.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "benchmarks/median.h"
#include "benchmarks/scaling/gradients.h"
#include "gradientflow/device/cuda_device.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kMostLaunches = 5000;

}  // namespace

Result<std::unique_ptr<Rig>> Rig::Create(std::shared_ptr<Device> device,
                                         const Settings& settings) {
  std::unique_ptr<Rig> rig(new Rig(std::move(device), settings));
  Result<std::unique_ptr<Stream>> stream =
      rig->device_->NewStream(/*urgent=*/false);
  if (!stream.ok()) return stream.status();
  rig->stream_ = std::move(stream).value();
  // Not zeros: memory that the GPU can compress would be faster.
  std::vector<std::byte> normal(settings.copy_bytes);
  Gradients(DType::kFloat32).Fill(0, 0, {normal.data(), normal.size(), {}});
  for (DeviceMemory& memory : rig->copied_) {
    Result<DeviceMemory> made = rig->Upload(normal.data(), normal.size());
    if (!made.ok()) return made.status();
    memory = std::move(made).value();
  }
  const auto copies =
      rig->CountFor([&rig](int i) { return rig->CopyBuffer(i); });
  if (!copies.ok()) return copies.status();
  rig->copies_ = copies.value();
  return rig;
}

Result<DeviceMemory> Rig::Upload(const void* data, std::size_t bytes) {
  Result<DeviceMemory> memory = device_->Allocate(bytes);
  if (!memory.ok() || bytes == 0) return memory;
  GF_RETURN_IF_ERROR(stream_->Copy(memory.value().get(), data, bytes));
  GF_RETURN_IF_ERROR(stream_->Synchronize());
  return memory;
}

Status Rig::Copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return Status();
  GF_RETURN_IF_ERROR(stream_->Copy(to, from, bytes));
  return stream_->Synchronize();
}

Status Rig::CopyBuffer(int i) {
  const int from = i % 2 == 0 ? 0 : 2;
  return stream_->Copy(copied_[from + 1].get(), copied_[from].get(),
                       settings_.copy_bytes);
}

Result<double> Rig::Time(int count, const Launch& launch) {
  GF_RETURN_IF_ERROR(stream_->Synchronize());
  const Clock::Time begin = SteadyClock().Now();
  for (int i = 0; i < count; ++i) GF_RETURN_IF_ERROR(launch(i));
  GF_RETURN_IF_ERROR(stream_->Synchronize());
  return Seconds(SteadyClock().Now() - begin) / count;
}

Result<int> Rig::CountFor(const Launch& launch) {
  // The first call may load the kernel.
  const auto first = Time(2, launch);
  if (!first.ok()) return first.status();
  const auto one = Time(8, launch);
  if (!one.ok()) return one.status();
  const double count = settings_.round_seconds / std::max(one.value(), 1e-7);
  return std::clamp(static_cast<int>(count), 2, kMostLaunches);
}

Result<Rig::Timing> Rig::Measure(double bytes, const Launch& launch) {
  const auto count = CountFor(launch);
  if (!count.ok()) return count.status();
  std::vector<double> seconds;
  std::vector<double> copy_rates;
  std::vector<double> shares;
  for (int round = 0; round < settings_.rounds; ++round) {
    const auto copy = Time(copies_, [this](int i) { return CopyBuffer(i); });
    if (!copy.ok()) return copy.status();
    const auto one = Time(count.value(), launch);
    if (!one.ok()) return one.status();
    seconds.push_back(one.value());
    copy_rates.push_back(2.0 * static_cast<double>(settings_.copy_bytes) /
                         copy.value());
    shares.push_back(bytes / one.value() / copy_rates.back());
  }
  return Timing{Median(seconds), Median(copy_rates), Median(shares)};
}

Result<std::shared_ptr<Device>> OpenGpu(int index) {
  auto device = OpenCudaDevice(index);
  if (!device.ok()) {
    std::printf("cuda: no device\n");
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return device.status();
  }
  return std::shared_ptr<Device>(std::move(device).value());
}

}  // namespace gradientflow::benchmarks
