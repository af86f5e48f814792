#pragma once

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/scaling/cell.h"
#include "benchmarks/scaling/table.h"
#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"

namespace gradientflow::benchmarks {

struct RunSettings {
  std::vector<std::string> models = {"alexnet_bn", "resnet50_gf"};
  std::vector<std::string> modes;  // Empty: all.
  bool sweep = false;              // SweepModes() instead.
  std::vector<int> ranks = {1, 2, 4};
  std::string fabric = "auto";
  std::string device = "cpu";               // As Options::device.
  std::string device_collectives = "auto";  // As Options' of that name.
  int batch = 128;                          // Per rank.
  int rounds = 5;
  int steps = 2;
  double link_gbps = 0;  // 0: the machine itself, unshaped.
  int link_mtu = 1500;
  std::string data = "benchmarks/data";
};

// Runs every model on every number of ranks in every mode and hands over the
// rows as they come. Ranks are child processes.
// REQUIRES: no other threads in this process.
Status RunScaling(const RunSettings& settings,
                  const std::function<void(const Row&)>& on_row);

}  // namespace gradientflow::benchmarks
