#pragma once

// Kernels convert bfloat16 with integers: they need nothing of this header.
