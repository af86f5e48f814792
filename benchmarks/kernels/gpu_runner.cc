#include "benchmarks/kernels/gpu_runner.h"

#include <stdexcept>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

// The inputs of one set, on the device.
struct DeviceSet {
  std::vector<DeviceMemory> owned;
  Memory memory;
};

DeviceSet UploadSet(Rig& rig, const KernelCase& which) {
  DeviceSet set;
  for (std::size_t b = 0; b < which.buffers.size(); ++b) {
    const auto contents = InitialContents(which, b, set.memory);
    set.owned.push_back(rig.Upload(contents.data(), contents.size()));
    set.memory.push_back(set.owned.back().get());
  }
  return set;
}

}  // namespace

Row RunCase(Rig& rig, const KernelCase& which) {
  const KernelTables tables = {rig.device().kernels(),
                               rig.device().chunk_kernels()};
  const DeviceSet sets[] = {UploadSet(rig, which), UploadSet(rig, which)};
  const Rig::Launch launch = [&](int i) {
    const int code =
        which.launch({tables, sets[i % 2].memory, rig.stream().native()});
    if (code == 0) return;
    throw std::runtime_error(
        StrCat("kernel ", which.name, ": device error ", code));
  };
  launch(0);
  std::vector<std::byte> bytes;
  Verify(which, {kernels::CpuKernels(), kernels::CpuChunkKernels()},
         [&](std::size_t b) {
           bytes.resize(which.buffers[b].bytes);
           rig.Copy(bytes.data(), sets[0].memory[b], bytes.size());
           return bytes.data();
         });
  const Rig::Timing seen = rig.Measure(which.bytes, launch);
  const double us = 1e6 * seen.seconds;
  Row row = {{"kernel", which.name}, {"us", us}};
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

}  // namespace gradientflow::benchmarks
