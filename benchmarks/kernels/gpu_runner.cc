#include "benchmarks/kernels/gpu_runner.h"

#include <array>
#include <cstdio>
#include <utility>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kSets = 2;

// The inputs of one set, on the device.
struct DeviceSet {
  std::vector<DeviceMemory> owned;
  KernelCase::Memory memory;
};

Result<DeviceSet> UploadSet(Rig& rig, const KernelCase& which) {
  DeviceSet set;
  for (std::size_t b = 0; b < which.buffers.size(); ++b) {
    const auto contents = InitialContents(which, b, set.memory);
    auto memory = rig.Upload(contents.data(), contents.size());
    if (!memory.ok()) return memory.status();
    set.memory.push_back(memory.value().get());
    set.owned.push_back(std::move(memory).value());
  }
  return set;
}

Status Verify(Rig& rig, const KernelCase& which, const DeviceSet& set) {
  const auto expected =
      RunOnHost(which, {kernels::CpuKernels(), kernels::CpuChunkKernels()});
  if (!expected.ok()) return expected.status();
  for (std::size_t b = 0; b < which.buffers.size(); ++b) {
    std::vector<std::byte> seen(which.buffers[b].bytes());
    GF_RETURN_IF_ERROR(rig.Copy(seen.data(), set.memory[b], seen.size()));
    GF_RETURN_IF_ERROR(
        CompareBuffer(which, b, expected.value()[b].data(), seen.data()));
  }
  return Status();
}

}  // namespace

Result<nlohmann::json> RunCase(Rig& rig, const KernelCase& which) {
  const KernelTables tables = {rig.device().kernels(),
                               rig.device().chunk_kernels()};
  std::vector<DeviceSet> sets;
  const Rig::Launch launch = [&](int i) {
    const int code =
        which.launch(tables, sets[static_cast<std::size_t>(i % kSets)].memory,
                     rig.stream().native());
    if (code == 0) return Status();
    return Status(StatusCode::kInternal,
                  StrCat("kernel ", which.name, ": device error ", code));
  };
  for (int s = 0; s < kSets; ++s) {
    Result<DeviceSet> set = UploadSet(rig, which);
    if (!set.ok()) return set.status();
    sets.push_back(std::move(set).value());
  }
  GF_RETURN_IF_ERROR(launch(0));
  GF_RETURN_IF_ERROR(Verify(rig, which, sets[0]));
  const auto timing = rig.Measure(which.bytes, launch);
  if (!timing.ok()) return timing.status();
  const Rig::Timing& seen = timing.value();
  const double us = 1e6 * seen.seconds;
  nlohmann::json row = {
      {"device", rig.description()}, {"kernel", which.name}, {"us", us}};
  bool met = which.most_us == 0 || us <= which.most_us;
  if (which.bytes > 0) {
    row["bytes"] = which.bytes;
    row["gb_per_s"] = which.bytes / seen.seconds / 1e9;
    row["copy_gb_per_s"] = seen.copy_bytes_per_second / 1e9;
    row["ratio"] = seen.copy_share;
    row["target"] = which.target;
    met = met && seen.copy_share >= which.target;
  }
  if (which.most_us > 0) row["target_us"] = which.most_us;
  row["met"] = met;
  return row;
}

std::string CaseHeader() {
  return "kernel                         MB       us     GB/s  copy GB/s  "
         "ratio          target\n";
}

std::string CaseLine(const nlohmann::json& row) {
  const auto number = [&](const char* key) { return row.value(key, 0.0); };
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(),
                "%-26s %6.1f %8.1f %8.0f %10.0f  %5.3f",
                row.at("kernel").get<std::string>().c_str(),
                number("bytes") / 1e6, number("us"), number("gb_per_s"),
                number("copy_gb_per_s"), number("ratio"));
  std::string line = text.data();
  const double target = number("target");
  const double most_us = number("target_us");
  if (target > 0 || most_us > 0) line += row.at("met") ? "  ok  " : "  MISS";
  if (target > 0) line += StrCat("  ", target);
  if (most_us > 0) line += StrCat("  ", most_us, " us");
  return line + "\n";
}

}  // namespace gradientflow::benchmarks
