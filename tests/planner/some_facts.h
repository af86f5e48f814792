#pragma once

#include <cstddef>
#include <string>

#include "gradientflow/planner/price.h"
#include "gradientflow/planner/probe.h"
#include "gradientflow/planner/profile.h"

// A model, a network and a price, for tests of plans.
namespace gradientflow::planner {

// 153 tensors, ready evenly over a backward of 0.1 s of a step of 0.16 s.
inline Profile ManyTensors() {
  Profile profile;
  profile.batch_samples = 32;
  profile.backward_seconds = {0.1, 0.1, 0.1};
  profile.step_seconds = {0.16, 0.158, 0.163};
  profile.step_spread_fraction = 0.01;
  for (int i = 1; i <= 153; ++i) {
    const double ready = 0.1 * i / 153;
    profile.tensors.push_back(
        {"t" + std::to_string(i),
         static_cast<std::size_t>(i % 7 == 0 ? 1000000 : 2000),
         {ready, ready, ready}});
  }
  return profile;
}

inline PairLevels Levels(double latency, double rate) {
  PairLevels levels;
  levels.latency_seconds = {latency, 2 * latency};
  levels.message_seconds = {2e-6, 4e-6};
  levels.reduce_bytes_per_second = {1e10, 9e9};
  levels.bandwidth = {
      {1 << 20, Direction::kBothWays, 1, 1, {rate, 0.9 * rate}}};
  return levels;
}

inline Probe TwoHosts() {
  Probe probe;
  probe.hosts = 2;
  probe.memory_bytes_per_second = {2e10, 1e10};
  ProbedPair across;
  across.transport = "tcp";
  across.idle = Levels(2e-5, 1.2e9);
  across.loaded = Levels(3e-5, 1e9);
  across.loaded->backward_seconds_per_message = Level{1e-5, 2e-5};
  across.idle.driver_seconds_per_byte = Level{1e-10, 1e-10};
  probe.pass_seconds = Level{1e-4, 2e-4};
  probe.pairs = {across};
  return probe;
}

inline NodePrice Price() { return {{}, "EUR", 2, 0, {}}; }

}  // namespace gradientflow::planner
