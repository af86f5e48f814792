#pragma once

// Every vector kernel includes this header first: it selects the targets for
// which Highway's foreach_target.h compiles the file, AVX2 and AVX-512. The
// kernels skip a baseline target that Highway adds by itself. Highway's
// assertions are off since they would need its library at run time; only its
// headers are used.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#define HWY_IS_DEBUG_BUILD 0
