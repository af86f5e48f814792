#pragma once

#include <string>

#include "gradientflow/planner/probe.h"
#include "gradientflow/probe/probe.h"

namespace gradientflow {

// The result as the planner's file has it.
planner::Probe FileOf(const ProbeResult& result);

// The same for people: some lines for each class of pair.
std::string TextOf(const ProbeResult& result);

}  // namespace gradientflow
