// What the engine costs: GradientReady() on the caller's thread, and memory
// beyond the gradient pool.
#include <cstdio>
#include <exception>
#include <string>

#include "CLI/CLI.hpp"
#include "benchmarks/engine/memory.h"
#include "benchmarks/engine/ready.h"

namespace gradientflow::benchmarks {
namespace {

Status Report(const std::string& data, const std::string& name, int steps) {
  const Result<Model> model = LoadModel(data, name, 128);
  if (!model.ok()) return model.status();
  const Result<ReadyTimes> ready = MeasureReady(model.value(), steps);
  if (!ready.ok()) return ready.status();
  std::printf("%s, 2 ranks over TCP\n", name.c_str());
  std::printf(
      "GradientReady: median %.3f us, 99 %% %.3f us, max %.1f us "
      "(target: median <= 0.5)\n",
      ready.value().median_us, ready.value().p99_us, ready.value().max_us);
  struct Case {
    const char* label;
    DType wire;
    float sparsity;
    double share;  // Of the pool, that may be used beside 64 MB.
  };
  const Case cases[] = {
      {"dense, float32", DType::kFloat32, 0, 0.1},
      {"dense, float16 wire", DType::kFloat16, 0, 0.1},
      {"CSC 85 %, float16 wire", DType::kFloat16, 0.85F, 1.3}};
  for (const Case& c : cases) {
    const Result<MemoryUse> use =
        MeasureMemory(model.value(), c.wire, c.sparsity);
    if (!use.ok()) return use.status();
    std::printf(
        "memory beyond the pool of %.0f MB, %s: %.1f MB "
        "(target: <= %.1f)\n",
        use.value().pool_mb, c.label, use.value().beyond_mb,
        c.share * use.value().pool_mb + 64);
  }
  return Status();
}

int Main(int argc, char** argv) {
  std::string model = "alexnet_bn";
  std::string data = "benchmarks/data";
  int steps = 50;
  CLI::App app("What the engine costs a training process.");
  app.option_defaults()->always_capture_default();
  app.add_option("--model", model)->check(CLI::IsMember(ModelNames()));
  app.add_option("--data", data, "folder of the tables");
  app.add_option("--steps", steps, "for GradientReady")
      ->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);
  const Status status = Report(data, model, steps);
  if (status.ok()) return 0;
  std::fprintf(stderr, "engine: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) try {
  return gradientflow::benchmarks::Main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "engine: %s\n", error.what());
  return 1;
}
