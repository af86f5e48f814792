#include "gradientflow/device/cuda_facts.h"

#include <array>
#include <cstdio>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {
namespace {

std::string GibibytesText(std::size_t bytes) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.1f GiB",
                static_cast<double>(bytes) / (1 << 30));
  return text.data();
}

std::string DeviceText(const CudaFacts::Device& device) {
  const std::string name =
      StrCat(device.name, " (", device.major, ".", device.minor, ")");
  if (!device.problem.empty()) return StrCat(name, ", ", device.problem);
  return StrCat(name, ", ", GibibytesText(device.free_bytes), " free of ",
                GibibytesText(device.total_bytes));
}

}  // namespace

std::string CudaVersionText(int version) {
  if (version == 0) return "none";
  return StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string CudaFacts::ToString() const {
  if (devices.empty()) return StrCat("cuda: no device (", reason, ")");
  std::string text = StrCat(
      "cuda: ", devices.size(), devices.size() == 1 ? " device" : " devices",
      " (driver ", CudaVersionText(driver_version), ", runtime ",
      CudaVersionText(runtime_version), ")");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    text += StrCat("; ", i, ": ", DeviceText(devices[i]));
  }
  return text;
}

}  // namespace gradientflow
