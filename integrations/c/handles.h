#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "gradientflow/base/status.h"
#include "gradientflow/communicator/communicator.h"
#include "gradientflow/config/options.h"
#include "gradientflow/device/device.h"
#include "gradientflow/session.h"
#include "integrations/c/gradientflow.h"
#include "integrations/c/gradientflow_csc.h"

// What the C API's opaque pointers point to, and how errors reach the caller.
struct gf_options {
  gradientflow::Options options;
  gf_exchange exchange = nullptr;
  void* exchange_user = nullptr;
};

struct gf_comm {
  // kInvalidArgument if the group is not open.
  gradientflow::Result<std::size_t> GroupSize(uint32_t group) const;

  std::shared_ptr<gradientflow::Communicator> comm;
  mutable std::mutex mutex;
  std::map<uint32_t, std::size_t> group_sizes;  // Guarded by `mutex`.
};

struct gf_session {
  std::unique_ptr<gradientflow::GradientSession> session;
};

namespace gradientflow::c_api {

// Keeps the text for gf_last_error() of this thread, and returns the code.
gf_status Report(const Status& status);
gf_status Invalid(const std::string& what);

// Returns kInvalidArgument unless `dtype` is the number of a type that
// gradients may have. The error's text begins with `what`.
Status CheckGradientType(const std::string& what, int32_t dtype);

// gf_csc_open() in memory of any device, or of the host if it is null. The
// caller closes the result.
Result<gf_csc*> OpenCsc(const gf_csc_config& config,
                        std::shared_ptr<Device> device);

// Returns kInvalidArgument if a tensor was not initialised.
Result<std::vector<TensorSpec>> SpecsOf(const gf_tensor* tensors,
                                        std::size_t count);

// Runs `body` and keeps exceptions of the standard library from crossing into
// C.
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

// A caller built against an older header passes a shorter struct: the missing
// fields keep their defaults.
template <typename Struct>
Struct WithDefaults(const Struct& given, void (*init)(Struct*)) {
  Struct full;
  init(&full);
  std::memcpy(
      &full, &given,
      given.struct_bytes < sizeof(full) ? given.struct_bytes : sizeof(full));
  full.struct_bytes = sizeof(full);
  return full;
}

}  // namespace gradientflow::c_api
