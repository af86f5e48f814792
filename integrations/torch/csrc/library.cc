#include "library.h"

#include <ATen/core/ATen_fwd.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "bind.h"

namespace gft {
namespace {

c10::DistBackendError ErrorOf(gf_status status, const std::string& what,
                              const std::string& text) {
  return c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
      c10::str("GradientFlow: ", what, ": ",
               text.empty() ? gf_status_name(status) : text.c_str()));
}

// Whether the library converts between that type and another on the wire.
bool Converts(int32_t dtype) {
  return gf_supports(GF_ALLREDUCE, dtype, GF_FLOAT32, GF_SUM) == 1;
}

}  // namespace

std::exception_ptr MakeError(gf_status status, const std::string& what,
                             const std::string& text) {
  return std::make_exception_ptr(ErrorOf(status, what, text));
}

std::string TimedOut(std::chrono::nanoseconds after, const std::string& what) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(after);
  return c10::str("Timed out waiting ", ms.count(), "ms for ", what);
}

void Check(gf_status status, const char* what) {
  if (status != GF_OK) throw ErrorOf(status, what, gf_last_error());
}

std::optional<int32_t> DtypeOf(at::ScalarType type) {
  const std::string name(c10::getDtypeNames(type).first);
  for (int32_t dtype = 0; gf_dtype_name(dtype) != nullptr; ++dtype) {
    if (name == gf_dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

bool IsGradientType(at::ScalarType type) {
  const std::optional<int32_t> dtype = DtypeOf(type);
  return dtype && Converts(*dtype);
}

Options Options::Default() {
  gf_options* options = nullptr;
  Check(gf_options_default(&options), "settings");
  return Options(options);
}

Options Options::FromEnv() {
  gf_options* options = nullptr;
  Check(gf_options_from_env(&options), "settings of the environment");
  return Options(options);
}

void Options::Set(const char* name, const std::string& value) {
  const gf_status set = gf_options_set(options_.get(), name, value.c_str());
  TORCH_CHECK_VALUE(set == GF_OK, gf_last_error());
}

void Options::Set(const char* name, std::chrono::milliseconds time) {
  // The library accepts a positive number of at most 1e9.
  const double seconds = static_cast<double>(time.count()) / 1000;
  Set(name, std::to_string(std::clamp(seconds, 0.001, 1e9)));
}

std::string Options::Get(const char* name) const {
  std::array<char, 4096> text{};
  Check(gf_options_get(options_.get(), name, text.data(), text.size()), name);
  return text.data();
}

std::chrono::milliseconds Options::GetTime(const char* name) const {
  return std::chrono::milliseconds(std::llround(std::stod(Get(name)) * 1000));
}

void BindLibrary(pybind11::module& module) {
  module.def(
      "library_version", [] { return gf_version(); },
      "Version of the libgradientflow.so loaded: major * 1000 + minor.");
  module.def(
      "gradient_types",
      [] {
        std::vector<std::string> names;
        for (int32_t type = 0; gf_dtype_name(type) != nullptr; ++type) {
          if (Converts(type)) names.emplace_back(gf_dtype_name(type));
        }
        return names;
      },
      "The names of the types of which gradients may be.");
  module.def(
      "check_setting",
      [](const std::string& name, const std::string& value) {
        Options::Default().Set(name.c_str(), value);
      },
      "ValueError if the library does not take it.");
}

}  // namespace gft
