#pragma once

#include <string>

#include "gradientflow/config/options.h"

namespace gradientflow {

// Lines "name=value": the settings of a communicator that must not differ
// between its ranks.
std::string AgreementText(const Options& options);

// "name=value\n" of one setting. REQUIRES that there is one of that name.
std::string SettingLine(const Options& options, const char* name);

// "rank 3 has wire_dtype=float16, rank 0 has wire_dtype=float32": the first
// line in which `theirs`, of `rank`, differs from `first`, that of rank 0.
// REQUIRES that they differ.
std::string FirstDifference(const std::string& first, int rank,
                            const std::string& theirs);

}  // namespace gradientflow
