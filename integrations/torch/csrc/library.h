#pragma once

#include <ATen/core/Tensor.h>
#include <integrations/c/gradientflow.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

// What the extension's parts know of libgradientflow.so: its errors, element
// types and settings.
namespace gft {

// An error of the library as torch has it: c10::DistBackendError, which is
// torch.distributed.DistBackendError in Python. `what` says which call failed;
// `text` is the library's, and names ranks.
std::exception_ptr MakeError(gf_status status, const std::string& what,
                             const std::string& text);
// Throws that error, with gf_last_error(), unless `status` is GF_OK.
void Check(gf_status status, const char* what);

// "Timed out waiting 1000ms for <what>", as torch's backends word it.
std::string TimedOut(std::chrono::nanoseconds after, const std::string& what);

// The library's number of an element type that it computes with: nothing for
// complex, bool, quantised and 8-bit float types.
std::optional<int32_t> DtypeOf(at::ScalarType type);

// Settings, as in the README's table. Movable; not thread-safe.
class Options {
 public:
  // Of this process's environment.
  static Options FromEnv();
  // With no environment.
  static Options Default();

  // `value` as in the environment; throws c10::ValueError, with the library's
  // text, if it refuses that.
  void Set(const char* name, const std::string& value);
  void Set(const char* name, std::chrono::milliseconds time);  // In seconds.
  std::string Get(const char* name) const;
  // Of a setting in seconds.
  std::chrono::milliseconds GetTime(const char* name) const;

  gf_options* get() const { return options_.get(); }

 private:
  explicit Options(gf_options* options) : options_(options) {}

  struct Free {
    void operator()(gf_options* options) const { gf_options_free(options); }
  };
  std::unique_ptr<gf_options, Free> options_;
};

}  // namespace gft
