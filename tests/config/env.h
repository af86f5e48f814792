#pragma once

#include <initializer_list>
#include <string>
#include <vector>

namespace gradientflow {

// An environ made from "NAME=value" strings.
class Env {
 public:
  Env(std::initializer_list<std::string> lines)
      : Env(std::vector<std::string>(lines)) {}
  explicit Env(std::vector<std::string> lines) : lines_(std::move(lines)) {
    for (const std::string& line : lines_) pointers_.push_back(line.c_str());
    pointers_.push_back(nullptr);
  }
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;

  const char* const* get() const { return pointers_.data(); }

 private:
  const std::vector<std::string> lines_;
  std::vector<const char*> pointers_;
};

}  // namespace gradientflow
