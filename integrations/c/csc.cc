#include "gradientflow/csc/csc.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "integrations/c/gradientflow_csc.h"
#include "integrations/c/handles.h"
#include "kernels/kernels.h"

// CSC in a caller's buckets, with a caller's exchange. csc/csc.h has the rules;
// here each bucket is one region of them. This file adds the marks, by which
// all ranks learn in the same step that a chunk which another rank keeps back
// is not finite.
//
//   packed buffer:  elements of selected chunks | one mark per kept chunk
//   mark:           0, or NaN where the kept chunk's norm is not finite
//
// The exchange takes a mean, and a mean with a NaN is NaN: so a mark of any
// rank reaches all ranks.

using gradientflow::ChunkSelector;
using gradientflow::Csc;
using gradientflow::DType;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::CheckGradientType;
using gradientflow::c_api::Guard;
using gradientflow::c_api::WithDefaults;

namespace {

constexpr float kMark = std::numeric_limits<float>::quiet_NaN();

struct Bucket : gf_csc_bucket {
  const Csc* rules = nullptr;
  gradientflow::CscRegion region;
  std::vector<uint8_t> sent;   // What `selected` points to.
  std::vector<uint8_t> dense;  // 1 for chunks that every step sends.
  std::vector<uint32_t> slots;
  std::vector<uint8_t> dirty;
};

}  // namespace

struct gf_csc {
  Csc rules;
  DType wire;
  uint64_t step;
  std::unique_ptr<gradientflow::CscMemory> memory;
  std::vector<std::unique_ptr<Bucket>> buckets;
};

namespace {

Status NotNull(const char* function, std::initializer_list<const void*> all) {
  for (const void* argument : all) {
    if (argument != nullptr) continue;
    return Status(StatusCode::kInvalidArgument,
                  StrCat(function, ": an argument is null"));
  }
  return Status();
}

// Derives the slots and the sizes of the packed buffer from bucket->sent. The
// bucket's last chunk may be short.
void TakeSelection(Bucket* bucket) {
  const size_t width = bucket->rules->config().selection.chunk_elements;
  const size_t sent =
      gradientflow::FillSlots(bucket->sent, bucket->slots.data());
  bucket->selected = bucket->sent.data();
  bucket->chunks = bucket->sent.size();
  bucket->marks = bucket->chunks - sent;
  bucket->packed_elements = sent * width + bucket->marks;
  if (bucket->chunks > 0 && bucket->sent.back() != 0) {
    bucket->packed_elements -= bucket->chunks * width - bucket->region.elements;
  }
}

Status Convert(const void* src, DType src_type, void* dst, DType dst_type,
               size_t n) {
  const int error = gradientflow::kernels::CpuKernels().convert(
      {src, src_type, dst, dst_type, nullptr, n, 1.0F, nullptr}, nullptr);
  if (error == 0) return Status();
  return Status(StatusCode::kInternal, StrCat("convert returned ", error));
}

std::byte* MarksOf(const Bucket& bucket) {
  return static_cast<std::byte*>(bucket.region.packed) +
         (bucket.packed_elements - bucket.marks) * SizeOf(bucket.region.wire);
}

Status WriteMarks(const Bucket& bucket) {
  std::vector<float> marks;
  for (size_t c = 0; c < bucket.chunks; ++c) {
    if (bucket.sent[c] != 0) continue;
    marks.push_back(std::isfinite(bucket.region.norms[c]) ? 0.0F : kMark);
  }
  return Convert(marks.data(), DType::kFloat32, MarksOf(bucket),
                 bucket.region.wire, marks.size());
}

// Writes NaN to the chunks that any rank has marked.
Status ReadMarks(const Bucket& bucket, int32_t* nonfinite) {
  const gradientflow::CscRegion& region = bucket.region;
  std::vector<float> marks(bucket.marks);
  GF_RETURN_IF_ERROR(Convert(MarksOf(bucket), region.wire, marks.data(),
                             DType::kFloat32, marks.size()));
  const size_t width = bucket.rules->config().selection.chunk_elements;
  auto mark = marks.begin();
  for (size_t c = 0; c < bucket.chunks; ++c) {
    const bool sent = bucket.sent[c] != 0;
    if (std::isfinite(sent ? region.norms[c] : *mark++)) continue;
    *nonfinite = 1;
    if (sent) continue;
    const size_t begin = c * width;
    const std::vector<float> nans(std::min(width, region.elements - begin),
                                  kMark);
    GF_RETURN_IF_ERROR(Convert(
        nans.data(), DType::kFloat32,
        static_cast<std::byte*>(region.grads) + begin * SizeOf(region.type),
        region.type, nans.size()));
  }
  return Status();
}

Status CheckScale(float loss_scale) {
  if (gradientflow::IsLossScale(loss_scale)) return Status();
  return Status(
      StatusCode::kInvalidArgument,
      StrCat("loss scale: expected a positive number, seen ", loss_scale));
}

}  // namespace

void gf_csc_config_init(gf_csc_config* config) {
  *config = {sizeof(*config), 32000, 0.85, 0, 0, 1.0F, 1.0F, GF_FLOAT16};
}

gf_status gf_csc_open(const gf_csc_config* given, gf_csc** out) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_open", {given, out}));
    if (given->struct_bytes < offsetof(gf_csc_config, wire_dtype)) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("gf_csc_open: struct_bytes is ", given->struct_bytes,
                           "; call gf_csc_config_init()"));
    }
    const gf_csc_config full = WithDefaults(*given, gf_csc_config_init);
    const gf_csc_config* const config = &full;
    GF_RETURN_IF_ERROR(CheckGradientType("wire_dtype", config->wire_dtype));
    GF_RETURN_IF_ERROR(CheckScale(config->loss_scale));
    if (!(config->keep_factor >= 0) || !std::isfinite(config->keep_factor)) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("keep_factor: expected a finite number of at least "
                           "0, seen ",
                           config->keep_factor));
    }
    gradientflow::CscOptions rules;
    rules.selection = {0, config->chunk_elements, config->sparsity,
                       config->warmup_steps};
    rules.zero_kept = true;
    rules.keep_factor = config->keep_factor;
    const Csc csc(rules, config->loss_scale);
    GF_RETURN_IF_ERROR(ChunkSelector::Create(rules.selection).status());
    const auto wire = static_cast<DType>(config->wire_dtype);
    *out =
        new gf_csc{csc, wire, config->step, gradientflow::HostCscMemory(), {}};
    return Status();
  });
}

void gf_csc_close(gf_csc* csc) { delete csc; }

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_csc_add(gf_csc* csc, size_t elements, int32_t dtype,
                     float* residual, const uint8_t* dense,
                     const uint8_t* selected, gf_csc_bucket** out) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_add", {csc, out}));
    GF_RETURN_IF_ERROR(CheckGradientType("dtype", dtype));
    const size_t width = csc->rules.config().selection.chunk_elements;
    const size_t chunks = elements / width + (elements % width != 0 ? 1 : 0);
    auto bucket = std::make_unique<Bucket>();
    bucket->rules = &csc->rules;
    bucket->sent.assign(chunks, 1);
    if (selected != nullptr) std::copy_n(selected, chunks, bucket->sent.data());
    bucket->dense.assign(chunks, 0);
    for (size_t c = 0; dense != nullptr && c < chunks; ++c) {
      bucket->dense[c] = dense[c] != 0 ? 1 : 0;
    }
    bucket->slots.resize(chunks);
    bucket->dirty.resize(chunks);
    gradientflow::CscRegion& region = bucket->region;
    region.memory = csc->memory.get();
    region.elements = elements;
    region.type = static_cast<DType>(dtype);
    region.wire = csc->wire;
    region.residual = residual;
    region.slots = bucket->slots.data();
    region.dirty = bucket->dirty.data();
    if (residual != nullptr) FindDirty(region, residual, width);
    TakeSelection(bucket.get());
    *out = csc->buckets.emplace_back(std::move(bucket)).get();
    return Status();
  });
}

gf_status gf_csc_drop(gf_csc* csc, size_t count) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_drop", {csc}));
    csc->buckets.resize(std::min(count, csc->buckets.size()));
    return Status();
  });
}

gf_status gf_csc_pack(gf_csc_bucket* bucket, void* grads, void* packed,
                      float scale, float* norms) {
  return Guard([&]() -> Status {
    auto* const ours = static_cast<Bucket*>(bucket);
    GF_RETURN_IF_ERROR(NotNull("gf_csc_pack", {ours, grads, packed, norms}));
    GF_RETURN_IF_ERROR(
        NotNull("gf_csc_pack: residual", {ours->region.residual}));
    ours->region.grads = grads;
    ours->region.packed = packed;
    ours->region.packed_scale = scale;
    ours->region.norms = norms;
    GF_RETURN_IF_ERROR(ours->rules->Pack(ours->region, 0, ours->chunks));
    return WriteMarks(*ours);
  });
}

gf_status gf_csc_unpack(gf_csc_bucket* bucket, int32_t* nonfinite) {
  return Guard([&]() -> Status {
    auto* const ours = static_cast<Bucket*>(bucket);
    GF_RETURN_IF_ERROR(NotNull("gf_csc_unpack", {ours, nonfinite}));
    if (ours->region.packed == nullptr) {
      return Status(StatusCode::kFailedPrecondition,
                    "gf_csc_unpack: the bucket has not been packed");
    }
    *nonfinite = 0;
    GF_RETURN_IF_ERROR(ours->rules->Unpack(ours->region, 0, ours->chunks));
    return ReadMarks(*ours, nonfinite);
  });
}

gf_status gf_csc_end_step(gf_csc* csc, int32_t nonfinite) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_end_step", {csc}));
    ++csc->step;
    for (const auto& bucket : csc->buckets) {
      // Null if this step has not packed the bucket.
      void* const packed = std::exchange(bucket->region.packed, nullptr);
      if (nonfinite == 0 || packed == nullptr) continue;
      GF_RETURN_IF_ERROR(csc->rules.Skip(bucket->region));
    }
    return Status();
  });
}

gf_status gf_csc_select(gf_csc* csc, const float* norm_sums, size_t chunks) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_select", {csc, norm_sums}));
    // The chunk count is as if every bucket were filled up to whole chunks.
    gradientflow::ChunkSelectorOptions config = csc->rules.config().selection;
    for (const auto& bucket : csc->buckets) {
      config.pool_elements += bucket->chunks * config.chunk_elements;
      config.always_dense.insert(config.always_dense.end(),
                                 bucket->dense.begin(), bucket->dense.end());
    }
    Result<ChunkSelector> selector = ChunkSelector::Create(config);
    if (!selector.ok()) return selector.status();
    GF_RETURN_IF_ERROR(selector.value().Select(csc->step, {norm_sums, chunks}));
    const uint8_t* next = selector.value().selected().data();
    for (const auto& bucket : csc->buckets) {
      bucket->sent.assign(next, next + bucket->chunks);
      TakeSelection(bucket.get());
      next += bucket->chunks;
    }
    return Status();
  });
}

uint64_t gf_csc_step(const gf_csc* csc) {
  return csc == nullptr ? 0 : csc->step;
}

gf_status gf_csc_set_loss_scale(gf_csc* csc, float loss_scale, float* factor) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_set_loss_scale", {csc, factor}));
    GF_RETURN_IF_ERROR(CheckScale(loss_scale));
    *factor = csc->rules.SetScale(loss_scale, loss_scale);
    for (const auto& bucket : csc->buckets) {
      if (bucket->region.residual == nullptr) continue;
      GF_RETURN_IF_ERROR(csc->rules.Rescale(bucket->region, *factor));
    }
    return Status();
  });
}

gf_csc_factors gf_csc_get_factors(const gf_csc* csc) {
  if (csc == nullptr) return {};
  const gradientflow::CscFactors& factors = csc->rules.factors();
  return {csc->rules.config().keep_factor, factors.kept_norm, factors.sent_norm,
          factors.give_back};
}
