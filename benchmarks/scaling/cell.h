#pragma once

#include <vector>

#include "benchmarks/scaling/mode.h"
#include "benchmarks/scaling/model.h"
#include "benchmarks/scaling/samples.h"
#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"

namespace gradientflow::benchmarks {

// One model on one number of ranks, in several modes.
struct Cell {
  Model model;
  std::vector<Mode> modes;
  int ranks = 1;
  int warmup_steps = 5;  // Untimed: pages, connections, the choice of theta.
  int rounds = 5;        // Of the modes in turn.
  int steps = 2;         // Per round and mode.
};

// One rank's part of `cell`: opens a session per mode and does iterations, the
// modes in turn. Every step's result is checked, outside the time taken.
// `options` say who, where, and on which device. Blocks until done.
//
// An iteration here is backward, what is left of the communication, and the
// time that forward and update take on the GPU; it begins at one moment on all
// ranks. On the CPU, making gradients, and the update itself, belong to the GPU
// and cost this machine no timed work. On a device, backward is work there, and
// its time alone is measured first, in the same process.
Result<CellSamples> RunCell(const Cell& cell, const Options& options);

}  // namespace gradientflow::benchmarks
