#pragma once

#include <dlfcn.h>

#include <string>

#include "gradientflow/base/str_cat.h"

namespace gradientflow {

// Looks names up in one loaded library, and remembers those that are missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  // Sets *function to null if the library has none of this name. With a
  // version, only that one counts: an older function of the same name may take
  // other structures.
  template <typename Function>
  void Optional(const char* name, Function** function,
                const char* version = nullptr) {
    *function = reinterpret_cast<Function*>(
        version == nullptr ? ::dlsym(library_, name)
                           : ::dlvsym(library_, name, version));
  }
  template <typename Function>
  void Required(const char* name, Function** function,
                const char* version = nullptr) {
    Optional(name, function, version);
    if (*function != nullptr) return;
    missing_ += StrCat(missing_.empty() ? "" : ", ", name);
    if (version != nullptr) missing_ += StrCat(" (", version, ")");
  }
  // The required names that are missing, with commas between.
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace gradientflow
