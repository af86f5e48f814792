#include "benchmarks/gpu/case_runner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "nlohmann/json.hpp"

namespace gradientflow::benchmarks {
namespace {

using Memory = KernelCase::Memory;

constexpr int kSets = 2;

// The inputs of one set, on the device.
struct DeviceSet {
  std::vector<DeviceMemory> owned;
  Memory memory;
};

std::vector<std::byte> Pointers(const CaseBuffer& buffer,
                                const Memory& memory) {
  std::vector<std::byte> bytes(buffer.bytes());
  for (std::size_t i = 0; i < buffer.pointers.size(); ++i) {
    std::byte* pointer = memory[buffer.target] + buffer.pointers[i];
    std::memcpy(bytes.data() + i * sizeof(pointer), &pointer, sizeof(pointer));
  }
  return bytes;
}

Result<DeviceSet> UploadSet(Rig& rig, const KernelCase& which) {
  DeviceSet set;
  for (const CaseBuffer& buffer : which.buffers) {
    // Targets come before what points to them.
    const std::vector<std::byte> pointers = Pointers(buffer, set.memory);
    Result<DeviceMemory> memory = rig.Upload(
        buffer.pointers.empty() ? buffer.contents.data() : pointers.data(),
        buffer.bytes());
    if (!memory.ok()) return memory.status();
    set.memory.push_back(memory.value().get());
    set.owned.push_back(std::move(memory).value());
  }
  return set;
}

template <typename T>
double ValueAt(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return static_cast<double>(value);
}

// The first element that differs too much.
std::optional<std::size_t> Difference(const CaseBuffer& buffer,
                                      const std::byte* expected,
                                      const std::byte* seen) {
  const std::size_t size = buffer.bytes();
  if (std::memcmp(expected, seen, size) == 0) return {};
  const std::size_t step = buffer.tolerance > 0 ? SizeOf(buffer.type) : 1;
  for (std::size_t i = 0; i < size; i += step) {
    if (std::memcmp(expected + i, seen + i, step) == 0) continue;
    if (buffer.tolerance == 0) return i;
    const auto value =
        buffer.type == DType::kFloat64 ? &ValueAt<double> : &ValueAt<float>;
    const double want = value(expected + i);
    if (!(std::fabs(value(seen + i) - want) <=
          buffer.tolerance * std::fabs(want))) {
      return i;
    }
  }
  return {};
}

// The CPU's results, in the case's own buffers' place.
Status RunOnCpu(const KernelCase& which,
                std::vector<std::vector<std::byte>>* results) {
  const KernelTables tables = {kernels::CpuKernels(),
                               kernels::CpuChunkKernels()};
  Memory memory;
  for (const CaseBuffer& buffer : which.buffers) {
    results->push_back(buffer.pointers.empty() ? buffer.contents
                                               : Pointers(buffer, memory));
    memory.push_back(results->back().data());
  }
  return KernelStatus(which.name + " on the CPU",
                      which.launch(tables, memory, nullptr));
}

Status Verify(Rig& rig, const KernelCase& which, const DeviceSet& set) {
  std::vector<std::vector<std::byte>> expected;
  GF_RETURN_IF_ERROR(RunOnCpu(which, &expected));
  for (std::size_t b = 0; b < which.buffers.size(); ++b) {
    const CaseBuffer& buffer = which.buffers[b];
    if (!buffer.pointers.empty() || !buffer.checked) continue;
    std::vector<std::byte> seen(buffer.bytes());
    GF_RETURN_IF_ERROR(rig.Copy(seen.data(), set.memory[b], seen.size()));
    const auto where = Difference(buffer, expected[b].data(), seen.data());
    if (!where) continue;
    return Status(StatusCode::kDataLoss,
                  StrCat(which.name, ": buffer ", b, ", byte ", *where, " of ",
                         buffer.bytes(), " differs from the CPU's"));
  }
  return Status();
}

}  // namespace

bool CaseResult::met() const {
  if (target > 0 && timing.copy_share < target) return false;
  return most_us == 0 || 1e6 * timing.seconds <= most_us;
}

Result<CaseResult> RunCase(Rig& rig, const KernelCase& which) {
  const KernelTables tables = {rig.device().kernels(),
                               rig.device().chunk_kernels()};
  std::vector<DeviceSet> sets;
  const Rig::Launch launch = [&](int i) {
    return KernelStatus(
        which.name,
        which.launch(tables, sets[static_cast<std::size_t>(i % kSets)].memory,
                     rig.stream().native()));
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
  CaseResult result;
  result.name = which.name;
  result.device = rig.description();
  result.bytes = which.bytes;
  result.timing = timing.value();
  result.target = which.bytes > 0 ? which.target : 0;
  result.most_us = which.most_us;
  return result;
}

Result<int> RunCases(Rig& rig, const std::vector<MakeCase>& cases,
                     const std::string& benchmark, const std::string& json) {
  std::ofstream file;
  if (!json.empty()) file.open(json);
  std::printf("%s\n%s", rig.description().c_str(), CaseHeader().c_str());
  int missed = 0;
  for (const MakeCase& make : cases) {
    const Result<CaseResult> result = RunCase(rig, make());
    if (!result.ok()) return result.status();
    if (!result.value().met()) ++missed;
    std::printf("%s", CaseLine(result.value()).c_str());
    std::fflush(stdout);
    if (file.is_open()) file << CaseJson(benchmark, result.value());
  }
  if (!json.empty() && !file.flush()) {
    return Status(StatusCode::kInternal, json + ": cannot write");
  }
  std::printf(
      "MB: read and written, at least; ratio: to a copy in the device's "
      "memory, "
      "timed in\nturn. All results are the CPU's. Targets missed: %d\n",
      missed);
  return missed;
}

std::string CaseHeader() {
  return "kernel                         MB       us     GB/s  copy GB/s  "
         "ratio          target\n";
}

std::string CaseLine(const CaseResult& r) {
  char text[200];
  const double us = 1e6 * r.timing.seconds;
  int used = 0;
  if (r.bytes > 0) {
    used = std::snprintf(
        text, sizeof(text), "%-26s %6.1f %8.1f %8.0f %10.0f  %5.3f",  //
        r.name.c_str(), r.bytes / 1e6, us, r.bytes / r.timing.seconds / 1e9,
        r.timing.copy_bytes_per_second / 1e9, r.timing.copy_share);
  } else {
    used = std::snprintf(text, sizeof(text), "%-26s %6s %8.1f %27s",
                         r.name.c_str(), "-", us, "");
  }
  std::string line(text, static_cast<std::size_t>(used));
  if (r.target > 0 || r.most_us > 0) line += r.met() ? "  ok  " : "  MISS";
  if (r.target > 0) line += StrCat("  ", r.target);
  if (r.most_us > 0) line += StrCat("  ", r.most_us, " us");
  return line + "\n";
}

std::string CaseJson(const std::string& benchmark, const CaseResult& r) {
  nlohmann::json json = {{"benchmark", benchmark},
                         {"device", r.device},
                         {"kernel", r.name},
                         {"us", 1e6 * r.timing.seconds},
                         {"met", r.met()}};
  if (r.bytes > 0) {
    json["bytes"] = r.bytes;
    json["gb_per_s"] = r.bytes / r.timing.seconds / 1e9;
    json["copy_gb_per_s"] = r.timing.copy_bytes_per_second / 1e9;
    json["ratio"] = r.timing.copy_share;
    json["target"] = r.target;
  }
  if (r.most_us > 0) json["target_us"] = r.most_us;
  return json.dump() + "\n";
}

}  // namespace gradientflow::benchmarks
