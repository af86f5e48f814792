#include "benchmarks/gpu/rig.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "benchmarks/lib/must.h"
#include "benchmarks/lib/turns.h"
#include "benchmarks/scaling/gradients.h"
#include "gradientflow/base/clock.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kMostLaunches = 5000;

}  // namespace

Rig::Rig(std::shared_ptr<Device> device, const Settings& settings)
    : device_(std::move(device)),
      settings_(settings),
      stream_(Must(device_->NewStream(/*urgent=*/false))) {
  // Not zeros: memory that the GPU can compress would be faster.
  std::vector<std::byte> normal(settings.copy_bytes);
  Gradients(DType::kFloat32).Fill(0, 0, {normal.data(), normal.size(), {}});
  for (DeviceMemory& memory : copied_) {
    memory = Upload(normal.data(), normal.size());
  }
  copies_ = CountFor([this](int i) { CopyBuffer(i); });
}

DeviceMemory Rig::Upload(const void* data, std::size_t bytes) {
  DeviceMemory memory = Must(device_->Allocate(bytes));
  Copy(memory.get(), data, bytes);
  return memory;
}

void Rig::Copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  Must(stream_->Copy(to, from, bytes));
  Must(stream_->Synchronize());
}

void Rig::CopyBuffer(int i) {
  const int from = i % 2 == 0 ? 0 : 2;
  Must(stream_->Copy(copied_[from + 1].get(), copied_[from].get(),
                     settings_.copy_bytes));
}

double Rig::Time(int count, const Launch& launch) {
  Must(stream_->Synchronize());
  const Clock::Time begin = SteadyClock().Now();
  for (int i = 0; i < count; ++i) launch(i);
  Must(stream_->Synchronize());
  return Seconds(SteadyClock().Now() - begin) / count;
}

int Rig::CountFor(const Launch& launch) {
  Time(2, launch);  // The first call may load the kernel.
  const double count =
      settings_.round_seconds / std::max(Time(8, launch), 1e-7);
  return std::clamp(static_cast<int>(count), 2, kMostLaunches);
}

Rig::Timing Rig::Measure(double bytes, const Launch& launch) {
  const int count = CountFor(launch);
  const auto seconds = TakeTurns(
      settings_.rounds,
      {[&] { return Time(copies_, [this](int i) { CopyBuffer(i); }); },
       [&] { return Time(count, launch); }});
  const double copy_bytes = 2.0 * static_cast<double>(settings_.copy_bytes);
  return {Median(seconds[1]), copy_bytes / Median(seconds[0]),
          MedianRatio(seconds[0], seconds[1]) * bytes / copy_bytes};
}

}  // namespace gradientflow::benchmarks
