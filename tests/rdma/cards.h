#pragma once

#include <string>

#include "gradientflow/config/options.h"
#include "gradientflow/config/settings_table.h"

extern char** environ;

namespace gradientflow::testing {

// Tests of RDMA run on fake devices, or with GRADIENTFLOW_RDMA_DEVICES=rxe on
// those of the kernel that are called rxe0, rxe1 and so on, one per rank.
// Returns "rxe" then, and "" otherwise.
inline const std::string& RealCards() {
  static const std::string* const cards = [] {
    const auto options = Options::FromEnv(environ);
    return new std::string(
        options.ok() ? GetOption(options.value(), "rdma_devices").value() : "");
  }();
  return *cards;
}

}  // namespace gradientflow::testing
