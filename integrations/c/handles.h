#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/config/options.h"
#include "gradientflow/session.h"
#include "integrations/c/gradientflow.h"

// What the C API's opaque pointers point to, and how errors leave.
struct gf_options {
  gradientflow::Options options;
};

struct gf_session {
  std::unique_ptr<gradientflow::Session> session;
  std::vector<std::size_t> tensor_elements;
};

namespace gradientflow::c_api {

// Keeps the text for gf_last_error() of this thread.
gf_status Report(const Status& status);
gf_status Invalid(const std::string& what);

// Runs `body` and lets no exception (of the standard library) cross into C.
template <typename Body>
gf_status Guard(Body body) {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(Status(StatusCode::kResourceExhausted, "out of memory"));
  } catch (const std::exception& e) {
    return Report(Status(StatusCode::kInternal, e.what()));
  }
}

}  // namespace gradientflow::c_api
