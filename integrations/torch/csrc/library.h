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

// What the parts of the extension know of libgradientflow.so: its errors,
// element types and settings.
namespace gft {

// An error of the library as torch has it: c10::DistBackendError, which is
// torch.distributed.DistBackendError in Python. `what` names the call that
// failed; `text` is the library's, and names ranks.
std::exception_ptr MakeError(gf_status status, const std::string& what,
                             const std::string& text);
// Throws that error, with gf_last_error(), unless `status` is GF_OK.
void Check(gf_status status, const char* what);

// "Timed out waiting 1000ms for <what>", in the words of torch's backends.
std::string TimedOut(std::chrono::nanoseconds after, const std::string& what);

// The library's number for an element type that it computes with; none for
// complex, bool, quantised and 8-bit float types.
std::optional<int32_t> DtypeOf(at::ScalarType type);

// Whether gradients of this type can be sent in chunks, or with another type on
// the wire: the library converts between such types.
bool IsGradientType(at::ScalarType type);

// Settings, as in settings.md. Movable; not thread-safe.
class Options {
 public:
  // Reads the environment of this process.
  static Options FromEnv();
  // Ignores the environment.
  static Options Default();

  // `value` is written as in the environment. Throws c10::ValueError, with the
  // library's text, if the library refuses it.
  void Set(const char* name, const std::string& value);
  void Set(const char* name, std::chrono::milliseconds time);  // In seconds.
  std::string Get(const char* name) const;
  // The value of a setting that is in seconds.
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
