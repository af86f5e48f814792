#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gradientflow/config/options.h"

namespace gradientflow {

// Returns lines "name=value": the settings of a communicator that must not
// differ between its ranks.
std::string AgreementText(const Options& options);

// Returns "name=value\n" for one setting. REQUIRES that there is a setting of
// that name.
std::string SettingLine(const Options& options, const char* name);

// Returns what ranks compare first: a hash of such lines, which is the same
// whatever compiler, standard library and machine computes it.
std::uint64_t AgreementHash(std::string_view text);

// What a rank says of its settings, in lines.
struct RankText {
  int rank;  // Of the job, not of a group.
  const std::string& text;
};

// Returns "the ranks disagree: rank 0 has algorithm=ring, rank 3 has
// algorithm=auto", which names the first line that differs. REQUIRES that the
// texts differ.
std::string FirstDifference(const RankText& a, const RankText& b);

}  // namespace gradientflow
