#pragma once

#include <cstddef>
#include <string>
#include <vector>

// What this process can find out about CUDA before it uses it, for reports to
// people. Builds without CUDA have it, too, and report that they lack CUDA.
namespace gradientflow {

struct CudaFacts {
  struct Device {
    std::string name;  // "NVIDIA H200".
    int major = 0;     // Compute capability.
    int minor = 0;
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    std::string problem;  // Empty if the device can be used.
  };

  bool built_in = false;
  // The newest CUDA that the driver supports: 13000 is 13.0; 0 if no driver.
  int driver_version = 0;
  int runtime_version = 0;  // The version of the runtime linked in.
  std::vector<Device> devices;
  std::string reason;  // Why there are no devices.

  // Returns one line: "cuda: no device (reason)", or "cuda: 2 devices (...); 0:
  // ...".
  std::string ToString() const;
};

// Asks the driver. Starts CUDA on every device, which takes some hundreds of
// MiB of each until the process ends, so a process that goes on to train should
// not call it.
CudaFacts ReadCudaFacts();

// Returns "13.0" for 13000, "none" for 0.
std::string CudaVersionText(int version);

}  // namespace gradientflow
