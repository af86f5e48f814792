#pragma once

#include <vector>

#include "gradientflow/collectives/schedule.h"

// What a symbolic execution of schedules works on: see symbolic_executor.h.
namespace gradientflow::testing {

// One element. Sums and products with integers below 2^53 are exact.
struct Cell {
  double value = 0;
  int scaled = 0;     // How often a mean's factor was applied.
  bool last = false;  // Has its last form.
};
using Cells = std::vector<Cell>;

enum class MeanScaling { kNone, kBeforeSum, kAfterSum };

struct SymbolicOptions {
  // Values sent are rounded to multiples of this; 0: exact.
  double wire_quantum = 0;
  // Whether nothing converts, so that scratch may be sent.
  bool plain = false;
  // Whether every element must get its last form exactly once, with
  // Action::last and Action::relay saying whether it is sent before or after
  // that.
  bool unscales = false;
  // kBeforeSum applies to multi_hop schedules; others scale after the sum.
  MeanScaling mean = MeanScaling::kNone;
  // Which ranks share memory; empty: all.
  Topology topology;
  // The ranks take turns in this order; empty: 0, 1, ...
  std::vector<int> turns;
};

struct SymbolicRank {
  Schedule schedule;
  Cells data;
  Cells input;
  // How often each element of data was used raw, and finished.
  std::vector<int> raw_uses;
  std::vector<int> final_uses;
};

}  // namespace gradientflow::testing
