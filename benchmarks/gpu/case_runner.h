#pragma once

#include <string>
#include <vector>

#include "benchmarks/gpu/kernel_case.h"
#include "benchmarks/gpu/rig.h"
#include "gradientflow/base/status.h"

namespace gradientflow::benchmarks {

struct CaseResult {
  std::string name;
  std::string device;
  double bytes = 0;
  Rig::Timing timing;
  double target = 0;   // Of timing.copy_share; 0: none.
  double most_us = 0;  // 0: none.

  bool met() const;
};

// What the device does on two sets of inputs in turn; the first launch on the
// first set is compared with the CPU's, buffer by buffer. kDataLoss names the
// first difference.
Result<CaseResult> RunCase(Rig& rig, const KernelCase& which);

// Runs them all, prints a table, and writes JSON lines where `json` names a
// file. Returns how many miss their targets.
Result<int> RunCases(Rig& rig, const std::vector<MakeCase>& cases,
                     const std::string& benchmark, const std::string& json);

std::string CaseHeader();
std::string CaseLine(const CaseResult& result);
// One line.
std::string CaseJson(const std::string& benchmark, const CaseResult& result);

}  // namespace gradientflow::benchmarks
