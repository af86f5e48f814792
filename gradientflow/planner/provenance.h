#pragma once

#include <string>

#include "gradientflow/planner/measured.h"

namespace gradientflow::planner {

// Who measures: `program` on this host.
std::string MeasuredBy(const std::string& program);

// The time of the day as Provenance::at has it.
std::string TimeNow();

}  // namespace gradientflow::planner
