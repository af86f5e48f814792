#pragma once

// To be included first by every vector kernel: what Highway's
// foreach_target.h compiles the file for. Only AVX2 and AVX-512; a baseline
// target that Highway adds by itself is skipped by the file. Highway's
// assertions would need its library at run time; only its headers are used.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#define HWY_IS_DEBUG_BUILD 0
