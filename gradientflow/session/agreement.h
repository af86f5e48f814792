#pragma once

#include <string>
#include <vector>

#include "gradientflow/config/options.h"
#include "gradientflow/session.h"

namespace gradientflow {

// Lines "name=value": the settings of a session that must not differ between
// its ranks, and the tensors. Long lists of tensors end in a hash of all of
// them.
std::string SessionText(const Options& options,
                        const std::vector<TensorSpec>& tensors);

// The same without what only says how gradients travel: what must not differ
// between the session that saves a state and the one that restores it.
std::string StateText(const Options& options,
                      const std::vector<TensorSpec>& tensors);

}  // namespace gradientflow
