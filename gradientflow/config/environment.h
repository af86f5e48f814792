#pragma once

#include <cstring>
#include <optional>
#include <string_view>

namespace gradientflow {

// A view of null-terminated "NAME=value" strings in the format of variables;
// null means an empty environment. Of two entries with the same name the first
// one counts, as for getenv.
class Environment {
 public:
  explicit Environment(const char* const* variables) : variables_(variables) {}

  std::optional<std::string_view> Find(std::string_view name) const {
    for (auto entry = variables_; entry != nullptr && *entry != nullptr;
         ++entry) {
      const std::string_view line(*entry);
      if (line.size() > name.size() && line[name.size()] == '=' &&
          line.substr(0, name.size()) == name) {
        return line.substr(name.size() + 1);
      }
    }
    return std::nullopt;
  }

  // Returns "" if the variable is not set.
  std::string_view Get(std::string_view name) const {
    return Find(name).value_or(std::string_view());
  }

 private:
  const char* const* variables_;
};

}  // namespace gradientflow
