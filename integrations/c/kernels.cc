#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "integrations/c/handles.h"

// The C API's kernels, which work on a caller's own memory. Each call checks
// its arguments, then runs the best CPU table on the caller's thread.

using gradientflow::DType;
using gradientflow::SizeOf;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::CheckGradientType;
using gradientflow::c_api::Guard;
using gradientflow::kernels::CpuKernels;

namespace {

Status Refuse(const char* function, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, StrCat(function, ": ", what));
}

Status CheckPointer(const char* function, const char* name, const void* data,
                    size_t n) {
  if (data != nullptr || n == 0) return Status();
  return Refuse(function, StrCat(name, " is null, with ", n, " elements"));
}

// A caller's buffer, as CheckApart() sees it.
struct Buffer {
  const char* name;
  const void* data;
  size_t bytes;
};

Status CheckApart(const char* function, const Buffer& a, const Buffer& b) {
  const auto a_at = reinterpret_cast<std::uintptr_t>(a.data);
  const auto b_at = reinterpret_cast<std::uintptr_t>(b.data);
  const bool apart =
      a_at < b_at ? b_at - a_at >= a.bytes : a_at - b_at >= b.bytes;
  if (apart) return Status();
  return Refuse(function, StrCat(a.name, " and ", b.name, " overlap"));
}

Status KernelStatus(const char* function, int error) {
  if (error == 0) return Status();
  return Status(StatusCode::kInternal,
                StrCat(function, ": the kernel returned ", error));
}

bool IsNumberOfDType(int32_t dtype) {
  return dtype >= 0 && dtype < gradientflow::kernels::kDTypes;
}

}  // namespace

gradientflow::Status gradientflow::c_api::CheckGradientType(
    const std::string& what, int32_t dtype) {
  if (IsNumberOfDType(dtype) && IsGradientType(static_cast<DType>(dtype))) {
    return Status();
  }
  return Status(StatusCode::kInvalidArgument,
                StrCat(what, " ", dtype, ": expected the number of ",
                       GradientTypeNames()));
}

const char* gf_dtype_name(int32_t dtype) {
  if (!IsNumberOfDType(dtype)) return nullptr;
  return gradientflow::Name(static_cast<DType>(dtype)).data();  // Of a literal.
}

gf_status gf_convert(const void* src, int32_t src_dtype, void* dst,
                     int32_t dst_dtype, size_t n, float scale) {
  return Guard([&]() -> Status {
    const char* const name = "gf_convert";
    GF_RETURN_IF_ERROR(CheckGradientType("gf_convert: src_dtype", src_dtype));
    GF_RETURN_IF_ERROR(CheckGradientType("gf_convert: dst_dtype", dst_dtype));
    GF_RETURN_IF_ERROR(CheckPointer(name, "src", src, n));
    GF_RETURN_IF_ERROR(CheckPointer(name, "dst", dst, n));
    const auto from = static_cast<DType>(src_dtype);
    const auto to = static_cast<DType>(dst_dtype);
    const bool in_place = src == dst && from == to;
    if (n > 0 && !in_place) {
      GF_RETURN_IF_ERROR(CheckApart(name, {"src", src, n * SizeOf(from)},
                                    {"dst", dst, n * SizeOf(to)}));
    }
    return KernelStatus(name, CpuKernels().convert({.src = src,
                                                    .src_type = from,
                                                    .dst = dst,
                                                    .dst_type = to,
                                                    .settled = nullptr,
                                                    .n = n,
                                                    .scale = scale,
                                                    .nonfinite = nullptr},
                                                   nullptr));
  });
}
