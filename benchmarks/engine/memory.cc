#include "benchmarks/engine/memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/ranks.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {
namespace {

constexpr int kSteps = 6;

// A line "name: 123 kB" of /proc/self/status, in MB.
double StatusMb(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name + ":", 0) != 0) continue;
    return std::stod(line.substr(name.size() + 1)) * 1024 / 1e6;
  }
  return 0;
}

Result<std::string> RunRank(const Model& model, const Options& options) {
  std::vector<TensorSpec> specs;
  for (const ModelTensor& tensor : model.tensors) {
    specs.push_back({tensor.name, tensor.elements});
  }
  const double before = StatusMb("VmRSS");
  auto session = GradientSession::Open(options, specs);
  if (!session.ok()) return session.status();
  const BufferView pool = session.value()->pool();
  for (int step = 0; step < kSteps; ++step) {
    auto* gradients = reinterpret_cast<float*>(pool.data);
    for (std::size_t i = 0; i < pool.bytes / sizeof(float); ++i) {
      gradients[i] = static_cast<float>((i * 2654435761U) % 1009) / 1009.0F;
    }
    for (std::size_t i = specs.size(); i-- > 0;) {
      session.value()->GradientReady(i);
    }
    const auto stats = session.value()->FinishStep();
    if (!stats.ok()) return stats.status();
  }
  const double pool_mb = static_cast<double>(pool.bytes) / 1e6;
  return StrCat(pool_mb, " ", StatusMb("VmHWM") - before - pool_mb);
}

}  // namespace

Result<MemoryUse> MeasureMemory(const Model& model, DType wire,
                                float sparsity) {
  const Result<std::string> rendezvous = LocalRendezvous();
  if (!rendezvous.ok()) return rendezvous.status();
  const auto texts = RunRanks(2, [&](int rank) {
    Options options;
    options.rank = rank;
    options.size = 2;
    options.rendezvous = rendezvous.value();
    options.fabric = "tcp";
    options.wire_dtype = wire;
    options.sparsity = sparsity;
    return RunRank(model, options);
  });
  if (!texts.ok()) return texts.status();
  MemoryUse use;
  for (const std::string& text : texts.value()) {
    MemoryUse one;
    std::istringstream(text) >> one.pool_mb >> one.beyond_mb;
    use.pool_mb = one.pool_mb;
    use.beyond_mb = std::max(use.beyond_mb, one.beyond_mb);
  }
  return use;
}

}  // namespace gradientflow::benchmarks
