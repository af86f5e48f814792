#pragma once

#include <string>
#include <vector>

#include "gradientflow/buckets/pool_layout.h"
#include "gradientflow/config/options.h"
#include "gradientflow/session.h"

namespace gradientflow {

// Returns lines "name=value": the settings of a session that must not differ
// between its ranks, and the tensors with their layout in the pool. A long list
// of tensors is cut; a hash of all of them ends it.
std::string SessionText(const Options& options,
                        const std::vector<TensorSpec>& tensors,
                        const PoolLayout& layout);

// Returns the same lines without the settings that say only how gradients
// travel: what must not differ between the session that saves a state and the
// one that restores it.
std::string StateText(const Options& options,
                      const std::vector<TensorSpec>& tensors,
                      const PoolLayout& layout);

}  // namespace gradientflow
