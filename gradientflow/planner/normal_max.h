#pragma once

namespace gradientflow::planner {

// The expected maximum of `count` independent standard normal numbers, to 1e-6;
// 0 for one of them. REQUIRES count >= 1. Any thread.
double ExpectedMaximum(int count);

}  // namespace gradientflow::planner
