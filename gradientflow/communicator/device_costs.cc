#include "gradientflow/communicator/device_costs.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "gradientflow/base/looks.h"
#include "gradientflow/buckets/tuning.h"
#include "gradientflow/device/device.h"

namespace gradientflow {
namespace {

// NCCL's links carry kProbeElements in some microseconds, which says little
// about their bandwidth.
constexpr std::size_t kElementsByNccl = std::size_t{4} << 20;
// Where the word lies, after the elements, that says whether sums are finite.
constexpr std::size_t kWordBytes = 256;

// Calls that are submitted one after the other, with an event after each.
struct Series {
  Stream* stream = nullptr;
  std::vector<std::unique_ptr<Event>> ends;
  std::size_t started = 0;
  std::size_t submitted = 0;
  std::size_t ended = 0;
  Clock::Time looked_at{};
  Status status;

  void Check(const Status& seen) {
    if (status.ok()) status = seen;
  }
  static void OnSubmitted(void* self, std::uint64_t i, std::uint32_t,
                          const Status&) {
    auto& series = *static_cast<Series*>(self);
    ++series.submitted;
    series.Check(series.stream->Record(series.ends[i].get()));
  }
  static void OnEnded(void* self, std::uint64_t, std::uint32_t,
                      const Status& status) {
    auto& series = *static_cast<Series*>(self);
    ++series.ended;
    series.Check(status);
  }
  // Whether the device has ended the calls, or never will.
  bool Reached(Clock::Time now) {
    if (!status.ok()) return true;
    if (submitted < started || now - looked_at < kLookInterval) return false;
    looked_at = now;
    const Result<bool> reached = ends.back()->Query();
    Check(reached.status());
    return !reached.ok() || reached.value();
  }
};

Status RunSeries(const DeviceCostsArgs& args, CollectiveCall call,
                 Series* series) {
  args.progress->Do([&] {
    series->stream = &args.path->wire(call.channel);
    for (std::size_t i = 0; i < series->ends.size(); ++i) {
      call.submitted = {&Series::OnSubmitted, series, i};
      const Status status =
          args.path->Start(call, {&Series::OnEnded, series, i});
      series->Check(status);
      if (!status.ok()) return;
      ++series->started;
    }
  });
  args.progress->Drive([&] {
    series->Check(args.fabric->status());
    return series->Reached(args.clock->Now());
  });
  // The calls that have started use the series, so a failure here has to end
  // them; the others wait for this rank anyway.
  args.progress->Do([&] {
    if (series->status.ok()) {
      args.path->collective().Passed(call.channel);
    } else {
      args.fabric->Fail(series->status);
    }
  });
  args.progress->Drive([&] { return series->ended == series->started; });
  return series->status;
}

Result<std::vector<double>> TimeSeries(const DeviceCostsArgs& args,
                                       const CollectiveCall& call, int rounds) {
  auto series = std::make_unique<Series>();
  for (int i = 0; i < rounds + kWarmUpRounds; ++i) {
    Result<std::unique_ptr<Event>> end = args.path->device()->NewTimedEvent();
    if (!end.ok()) return end.status();
    series->ends.push_back(std::move(end).value());
  }
  GF_RETURN_IF_ERROR(RunSeries(args, call, series.get()));
  std::vector<double> times;
  for (std::size_t i = kWarmUpRounds; i < series->ends.size(); ++i) {
    const Result<double> seconds =
        series->ends[i]->SecondsSince(*series->ends[i - 1]);
    if (!seconds.ok()) return seconds.status();
    times.push_back(seconds.value());
  }
  return times;
}

Result<CallCost> Measure(const DeviceCostsArgs& args, DType pool, DType wire) {
  const bool by_nccl = args.path->by_nccl();
  CostProbe probe;
  probe.run = [&](const CollectiveCall& call) { return args.calls->Run(call); };
  probe.elements = by_nccl ? kElementsByNccl : kProbeElements;
  if (by_nccl) {
    probe.dtype = pool;
    probe.wire = wire;
  }
  const std::size_t bytes = probe.elements * SizeOf(probe.dtype);
  Result<DeviceMemory> memory = args.path->Allocate(bytes + kWordBytes);
  if (!memory.ok()) return memory.status();
  std::byte* const data = memory.value().get();
  probe.data = data;
  probe.time = [&](CollectiveCall call, int rounds) {
    call.nonfinite = reinterpret_cast<std::uint32_t*>(data + bytes);
    return by_nccl ? TimeSeries(args, call, rounds)
                   : TimeByClock(probe.run, *args.clock, call, rounds);
  };
  args.progress->Do([&] { args.path->Register(data, bytes); });
  Result<CallCost> cost = MeasureCallCost(probe);
  args.progress->Do([&] { args.path->Deregister(data); });
  return cost;
}

}  // namespace

Result<CallCost> MeasureOnDevice(const DeviceCostsArgs& args, DType pool,
                                 DType wire) {
  Result<CallCost> cost = Measure(args, pool, wire);
  if (!cost.ok()) {
    args.progress->Do([&] { args.fabric->Fail(cost.status()); });
  }
  return cost;
}

}  // namespace gradientflow
