#include "benchmarks/scaling/mode.h"

namespace gradientflow::benchmarks {

void Mode::Apply(Options& options) const {
  options.pool_dtype = dtype;
  options.wire_dtype = dtype;
  options.overlap = overlap;
  options.bucket_bytes = bucket_bytes;
  options.sparsity = sparsity;
}

std::vector<Mode> Modes() {
  constexpr auto kFp32 = DType::kFloat32;
  constexpr auto kFp16 = DType::kFloat16;
  return {
      {"fp32", "FP32 per tensor", kFp32, false, 0, 0},
      {"fp16", "FP16 per tensor", kFp16, false, 0, 0},
      {"overlap", "+ overlap", kFp16, true, 0, 0},
      {"lazy", "+ lazy allreduce", kFp16, true, kAutoBytes, 0},
      {"csc", "+ CSC 85 %", kFp16, true, kAutoBytes, 0.85F},
  };
}

std::vector<Mode> SweepModes() {
  const Mode automatic = *FindMode("lazy");
  std::vector<Mode> modes = {automatic};
  for (std::size_t kilobytes : {0, 256, 1024, 4096, 8192, 16384, 65536}) {
    Mode fixed = automatic;
    fixed.bucket_bytes = kilobytes << 10;
    fixed.name = "theta" + std::to_string(kilobytes) + "KB";
    fixed.label = "theta " + std::to_string(kilobytes) + " KB";
    modes.push_back(fixed);
  }
  modes.push_back(automatic);
  modes.back().bucket_bytes = kInfiniteBytes;
  modes.back().name = "thetainf";
  modes.back().label = "theta infinite";
  return modes;
}

std::optional<Mode> FindMode(const std::string& name) {
  for (const Mode& mode : Modes()) {
    if (mode.name == name) return mode;
  }
  return std::nullopt;
}

}  // namespace gradientflow::benchmarks
