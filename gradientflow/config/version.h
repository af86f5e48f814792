#pragma once

namespace gradientflow {

// Version of the library, equal to the C API's GF_VERSION_*. Minor versions
// only add.
inline constexpr int kVersionMajor = 2;
inline constexpr int kVersionMinor = 0;

}  // namespace gradientflow
