#pragma once

namespace gradientflow {

// Of the library; the C API's GF_VERSION_* agree. Minor versions only add.
inline constexpr int kVersionMajor = 2;
inline constexpr int kVersionMinor = 0;

}  // namespace gradientflow
