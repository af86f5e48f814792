#pragma once

#include <string>

#include "gradientflow/config/options.h"

namespace gradientflow {

// Returns lines "name=value": the settings of a communicator that must not
// differ between its ranks.
std::string AgreementText(const Options& options);

// Returns "name=value\n" for one setting. REQUIRES that there is a setting of
// that name.
std::string SettingLine(const Options& options, const char* name);

// Returns "the ranks disagree: rank 0 has algorithm=ring, rank 3 has
// algorithm=auto": the first line in which `theirs`, the text of `rank`,
// differs from `first`, that of rank 0. REQUIRES that they differ.
std::string FirstDifference(const std::string& first, int rank,
                            const std::string& theirs);

}  // namespace gradientflow
