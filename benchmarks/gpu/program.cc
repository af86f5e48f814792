#include "benchmarks/gpu/program.h"

#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>

#include "gradientflow/device/cuda_device.h"

namespace gradientflow::benchmarks {

GpuProgram::GpuProgram(const std::string& what) : app(what) {
  app.option_defaults()->always_capture_default();
  app.add_option("--device", device,
                 "index of the GPU; no two ranks may share one");
  app.add_option("--rounds", rig.rounds, "of both sides in turn")
      ->check(CLI::Range(1, 1000));
  app.add_option("--json", json_, "write the rows as JSON lines");
}

int GpuProgram::Run(int argc, char** argv,
                    const std::function<void(Rig&, const Report&)>& run) {
  CLI11_PARSE(app, argc, argv);
  auto opened = OpenCudaDevice(device);
  if (!opened.ok()) {
    std::printf("cuda: no device\n");
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    return 3;
  }
  try {
    std::ofstream json;
    if (!json_.empty()) json.open(json_);
    Rig made(std::move(opened).value(), rig);
    int missed = 0;
    std::printf("%s\n", made.description().c_str());
    run(made, [&](Row row) {
      missed += row.value("met", true) ? 0 : 1;
      std::printf("%s\n", row.dump().c_str());
      std::fflush(stdout);
      row["device"] = made.description();
      json << row.dump() << "\n";
    });
    std::printf("targets missed: %d\n", missed);
    if (json_.empty() || json.flush()) return 0;
    throw std::runtime_error(json_ + ": cannot write");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

}  // namespace gradientflow::benchmarks
