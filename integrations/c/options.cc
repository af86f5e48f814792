#include <unistd.h>

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/settings_table.h"
#include "integrations/c/handles.h"

using gradientflow::GetOption;
using gradientflow::Options;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::Guard;
using gradientflow::c_api::Invalid;

namespace gradientflow::c_api {
namespace {

std::string& LastError() {
  thread_local std::string text;
  return text;
}

}  // namespace

gf_status Report(const Status& status) {
  if (!status.ok()) LastError() = status.message();
  return static_cast<gf_status>(status.code());
}

gf_status Invalid(const std::string& what) {
  return Report(Status(StatusCode::kInvalidArgument, what));
}

}  // namespace gradientflow::c_api

int32_t gf_version(void) { return GF_VERSION_MAJOR * 1000 + GF_VERSION_MINOR; }

const char* gf_last_error(void) {
  return gradientflow::c_api::LastError().c_str();
}

const char* gf_status_name(gf_status status) {
  return gradientflow::Name(static_cast<StatusCode>(status));
}

gf_status gf_options_from_env(gf_options** out) {
  if (out == nullptr) return Invalid("out is null");
  *out = nullptr;
  return Guard([&]() -> Status {
    Result<Options> options = Options::FromEnv(environ);
    if (!options.ok()) return options.status();
    *out = new gf_options{std::move(options).value()};
    return Status();
  });
}

gf_status gf_options_default(gf_options** out) {
  if (out == nullptr) return Invalid("out is null");
  *out = nullptr;
  return Guard([&]() -> Status {
    *out = new gf_options();
    return Status();
  });
}

gf_status gf_options_set_exchange(gf_options* options, gf_exchange exchange,
                                  void* user) {
  if (options == nullptr) return Invalid("options is null");
  options->exchange = exchange;
  options->exchange_user = user;
  return GF_OK;
}

gf_status gf_options_set(gf_options* options, const char* name,
                         const char* value) {
  if (options == nullptr || name == nullptr || value == nullptr) {
    return Invalid("gf_options_set: an argument is null");
  }
  return Guard(
      [&] { return gradientflow::SetOption(&options->options, name, value); });
}

gf_status gf_options_get(const gf_options* options, const char* name, char* buf,
                         size_t buf_bytes) {
  if (options == nullptr || name == nullptr || buf == nullptr ||
      buf_bytes == 0) {
    return Invalid("gf_options_get: an argument is null, or no room in buf");
  }
  buf[0] = '\0';
  return Guard([&]() -> Status {
    Result<std::string> text = GetOption(options->options, name);
    if (!text.ok()) return text.status();
    if (text.value().size() >= buf_bytes) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("buf has ", buf_bytes, " bytes, needs ",
                           text.value().size() + 1));
    }
    std::memcpy(buf, text.value().c_str(), text.value().size() + 1);
    return Status();
  });
}

void gf_options_free(gf_options* options) { delete options; }
