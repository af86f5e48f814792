#pragma once

#include "gradientflow/csc/memory.h"

// The golden values of Algorithm 1 (arXiv 1902.06855) for every memory.
namespace gradientflow::testing {

// Where the residual is: in memory of its own, or in the gradients, to which
// the rank then adds.
enum class ResidualPlace { kApart, kInGradients };

// One rank follows the algorithm, with gradients 1, momentum 0.9 and learning
// rate 0.1, in `memory`; a chunk's norms make it important in steps 3 and 5.
// Residuals, what is sent, norms, momentum and weights are the published ones.
void ExpectGoldenSteps(CscMemory& memory,
                       ResidualPlace place = ResidualPlace::kApart);

// A step that is not finite, in a chunk that is kept or in one that is sent.
// What was sent returns to the residual, and nothing else changes.
void ExpectSkippedStep(CscMemory& memory,
                       ResidualPlace place = ResidualPlace::kApart);

}  // namespace gradientflow::testing
