#include "kernels/kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "integrations/c/handles.h"
#include "kernels/chunk_kernels.h"

// The kernels on a caller's own memory, one call for each chunk: the sums are
// those that a session forms of its pool, bit for bit.

using gradientflow::DType;
using gradientflow::SizeOf;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::Guard;
using gradientflow::kernels::CpuChunkKernels;
using gradientflow::kernels::CpuKernels;

namespace {

constexpr size_t kMostChunks = size_t{1} << 31;

Status Refuse(const char* function, const std::string& what) {
  return Status(StatusCode::kInvalidArgument, StrCat(function, ": ", what));
}

Status CheckType(const char* function, const char* name, int32_t dtype) {
  if (dtype >= GF_FLOAT32 && dtype <= GF_BFLOAT16) return Status();
  return Refuse(function, StrCat(name, " ", dtype,
                                 ": expected GF_FLOAT32 (0), GF_FLOAT16 (1) or "
                                 "GF_BFLOAT16 (2)"));
}

Status CheckPointer(const char* function, const char* name, const void* data,
                    size_t n) {
  if (data != nullptr || n == 0) return Status();
  return Refuse(function, StrCat(name, " is null, with ", n, " elements"));
}

Status CheckChunks(const char* function, size_t chunk_elements) {
  if (chunk_elements > 0) return Status();
  return Refuse(function, "chunk_elements: expected at least 1, seen 0");
}

// A caller's buffer, for CheckApart().
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

// f(c, begin, count) for each chunk of n elements, up to the first error.
template <typename F>
Status ForEachChunk(const char* function, size_t n, size_t chunk_elements,
                    F f) {
  size_t begin = 0;
  for (size_t c = 0; begin < n; ++c) {
    const size_t count = std::min(chunk_elements, n - begin);
    GF_RETURN_IF_ERROR(KernelStatus(function, f(c, begin, count)));
    begin += count;
  }
  return Status();
}

}  // namespace

gf_status gf_convert(const void* src, int32_t src_dtype, void* dst,
                     int32_t dst_dtype, size_t n, float scale) {
  return Guard([&]() -> Status {
    const char* const name = "gf_convert";
    GF_RETURN_IF_ERROR(CheckType(name, "src_dtype", src_dtype));
    GF_RETURN_IF_ERROR(CheckType(name, "dst_dtype", dst_dtype));
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

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_csc_residual(void* grads, int32_t dtype, float* residual, size_t n,
                          size_t chunk_elements, const uint8_t* selected,
                          int32_t zero_kept, float keep_factor, float* norms) {
  return Guard([&]() -> Status {
    const char* const name = "gf_csc_residual";
    GF_RETURN_IF_ERROR(CheckType(name, "dtype", dtype));
    GF_RETURN_IF_ERROR(CheckChunks(name, chunk_elements));
    GF_RETURN_IF_ERROR(CheckPointer(name, "grads", grads, n));
    GF_RETURN_IF_ERROR(CheckPointer(name, "residual", residual, n));
    GF_RETURN_IF_ERROR(CheckPointer(name, "selected", selected, n));
    const auto type = static_cast<DType>(dtype);
    if (n > 0) {
      GF_RETURN_IF_ERROR(CheckApart(name, {"grads", grads, n * SizeOf(type)},
                                    {"residual", residual, n * sizeof(float)}));
    }
    return ForEachChunk(
        name, n, chunk_elements, [&](size_t c, size_t begin, size_t count) {
          if (norms != nullptr) norms[c] = 0.0F;
          auto* chunk = static_cast<std::byte*>(grads) + begin * SizeOf(type);
          return CpuKernels().residual(
              {.grads = chunk,
               .type = type,
               .residual = residual + begin,
               .n = count,
               .send = selected[c] != 0,
               .zero_kept = zero_kept != 0,
               .keep_factor = keep_factor,
               .norm = norms == nullptr ? nullptr : norms + c},
              nullptr);
        });
  });
}

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_csc_norms(const void* src, int32_t dtype, size_t n,
                       size_t chunk_elements, const uint8_t* selected,
                       float scale, float* norms) {
  return Guard([&]() -> Status {
    const char* const name = "gf_csc_norms";
    GF_RETURN_IF_ERROR(CheckType(name, "dtype", dtype));
    GF_RETURN_IF_ERROR(CheckChunks(name, chunk_elements));
    GF_RETURN_IF_ERROR(CheckPointer(name, "src", src, n));
    GF_RETURN_IF_ERROR(CheckPointer(name, "norms", norms, n));
    const auto type = static_cast<DType>(dtype);
    return ForEachChunk(
        name, n, chunk_elements, [&](size_t c, size_t begin, size_t count) {
          if (selected != nullptr && selected[c] == 0) return 0;
          norms[c] = 0.0F;
          const auto* chunk =
              static_cast<const std::byte*>(src) + begin * SizeOf(type);
          return CpuKernels().l1_norm({.src = chunk,
                                       .type = type,
                                       .n = count,
                                       .scale = scale,
                                       .norm = norms + c},
                                      nullptr);
        });
  });
}

gf_status gf_csc_select(const float* norms, size_t chunks, size_t keep,
                        uint8_t* selected) {
  return Guard([&]() -> Status {
    const char* const name = "gf_csc_select";
    if (chunks > kMostChunks) {
      return Refuse(name, StrCat("chunks: expected at most ", kMostChunks,
                                 ", seen ", chunks));
    }
    if (keep > chunks) {
      return Refuse(name, StrCat("keep: expected at most ", chunks,
                                 ", one per chunk, seen ", keep));
    }
    GF_RETURN_IF_ERROR(CheckPointer(name, "norms", norms, chunks));
    GF_RETURN_IF_ERROR(CheckPointer(name, "selected", selected, chunks));
    std::vector<std::uint32_t> slots(chunks);
    std::vector<std::max_align_t> workspace(
        gradientflow::kernels::TopKWorkspaceBytes(chunks) /
            sizeof(std::max_align_t) +
        1);
    return KernelStatus(name,
                        CpuChunkKernels().top_k({.norms = norms,
                                                 .always = nullptr,
                                                 .chunks = chunks,
                                                 .k = keep,
                                                 .slots = slots.data(),
                                                 .selected = selected,
                                                 .workspace = workspace.data(),
                                                 .nonfinite = nullptr},
                                                nullptr));
  });
}
