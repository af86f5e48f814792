#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace gradientflow {

// Which network interfaces or devices a user wants: a comma list of prefixes of
// their names. A leading ^ excludes these, a leading = compares whole names,
// and an empty list allows all. Refers to the text that it is made from.
struct NameFilter {
  explicit NameFilter(std::string_view text) {
    excludes = text.starts_with('^');
    if (excludes) text.remove_prefix(1);
    whole = text.starts_with('=');
    if (whole) text.remove_prefix(1);
    while (!text.empty()) {
      const std::size_t comma = text.find(',');
      if (comma != 0) names.push_back(text.substr(0, comma));
      text.remove_prefix(comma == std::string_view::npos ? text.size()
                                                         : comma + 1);
    }
  }

  bool Names(std::string_view seen) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      return whole ? seen == name : seen.starts_with(name);
    });
  }
  // Returns whether the user has named what to use.
  bool selects() const { return !excludes && !names.empty(); }
  bool Allows(std::string_view seen) const {
    return names.empty() || Names(seen) != excludes;
  }

  bool excludes = false;
  bool whole = false;
  std::vector<std::string_view> names;
};

}  // namespace gradientflow
