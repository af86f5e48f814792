#pragma once

#include <cstddef>
#include <string>
#include <vector>

// What this process can know of CUDA before it uses it: for reports to a
// person. The same in builds without CUDA, where it says so.
namespace gradientflow {

struct CudaFacts {
  struct Device {
    std::string name;  // "NVIDIA H200".
    int major = 0;     // Compute capability.
    int minor = 0;
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    std::string problem;  // Empty: the device can be used.
  };

  bool built_in = false;
  int driver_version = 0;   // The newest CUDA it can do, 13000 is 13.0; 0: no
  int runtime_version = 0;  // driver. And that of the runtime that we carry.
  std::vector<Device> devices;
  std::string reason;  // Why there are no devices.

  // One line: "cuda: no device (reason)", or "cuda: 2 devices (...); 0: ...".
  std::string ToString() const;
};

// Asks the driver. Starts CUDA on every device (some hundreds of MiB each
// while the process lives), so not for a process that goes on to train.
CudaFacts ReadCudaFacts();

// "13.0" of 13000, "none" of 0.
std::string CudaVersionText(int version);

}  // namespace gradientflow
