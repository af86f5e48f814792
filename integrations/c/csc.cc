#include "gradientflow/csc/csc.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "integrations/c/handles.h"
#include "kernels/kernels.h"

// CSC in a caller's buckets, by a caller's exchange: the rules of csc.h, for
// one region per bucket, and the marks, by which ranks learn in the same step
// that what another one keeps back is not finite.

using gradientflow::ChunkSelector;
using gradientflow::Csc;
using gradientflow::DType;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::Guard;

struct gf_csc_bucket {
  size_t chunks() const { return selected.size(); }
  size_t kept() const { return chunks() - sent; }

  const Csc* rules = nullptr;
  gradientflow::CscRegion region;
  std::vector<uint8_t> selected;
  std::vector<uint8_t> always_dense;
  std::vector<uint32_t> slots;
  std::vector<uint8_t> dirty;
  size_t sent = 0;           // Chunks.
  size_t sent_elements = 0;  // In front of the marks.
};

struct gf_csc {
  Csc rules;
  DType wire;
  uint64_t step;
  std::unique_ptr<gradientflow::CscMemory> memory;
  std::vector<std::unique_ptr<gf_csc_bucket>> buckets;
};

namespace {

Status Refuse(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, what);
}

bool IsGradientType(int32_t dtype) {
  return dtype >= GF_FLOAT32 && dtype <= GF_BFLOAT16;
}

// Takes over what `bucket.selected` says.
void Select(gf_csc_bucket* bucket) {
  bucket->sent =
      gradientflow::FillSlots(bucket->selected, bucket->slots.data());
  const size_t width = bucket->rules->config().chunk_elements;
  bucket->sent_elements = bucket->sent * width;
  if (bucket->chunks() > 0 && bucket->selected.back() != 0) {
    bucket->sent_elements -= bucket->chunks() * width - bucket->region.elements;
  }
}

Status Convert(const void* src, DType src_type, void* dst, DType dst_type,
               size_t n) {
  const int error = gradientflow::kernels::CpuKernels().convert(
      {src, src_type, dst, dst_type, nullptr, n, 1.0F, nullptr}, nullptr);
  if (error == 0) return Status();
  return Status(StatusCode::kInternal, StrCat("convert returned ", error));
}

std::byte* MarksOf(const gf_csc_bucket& bucket) {
  return static_cast<std::byte*>(bucket.region.packed) +
         bucket.sent_elements * SizeOf(bucket.region.wire);
}

Status WriteMarks(const gf_csc_bucket& bucket) {
  std::vector<float> marks;
  for (size_t c = 0; c < bucket.chunks(); ++c) {
    if (bucket.selected[c] != 0) continue;
    marks.push_back(std::isfinite(bucket.region.norms[c])
                        ? 0.0F
                        : std::numeric_limits<float>::quiet_NaN());
  }
  return Convert(marks.data(), DType::kFloat32, MarksOf(bucket),
                 bucket.region.wire, marks.size());
}

// Makes NaNs of the chunks that any rank has marked.
Status ReadMarks(const gf_csc_bucket& bucket, int32_t* nonfinite) {
  std::vector<float> marks(bucket.kept());
  GF_RETURN_IF_ERROR(Convert(MarksOf(bucket), bucket.region.wire, marks.data(),
                             DType::kFloat32, marks.size()));
  const size_t width = bucket.rules->config().chunk_elements;
  const size_t bytes = SizeOf(bucket.region.type);
  size_t mark = 0;
  for (size_t c = 0; c < bucket.chunks(); ++c) {
    const bool finite = std::isfinite(
        bucket.selected[c] != 0 ? bucket.region.norms[c] : marks[mark++]);
    if (finite) continue;
    *nonfinite = 1;
    if (bucket.selected[c] != 0) continue;
    const std::vector<float> nans(
        std::min(width, bucket.region.elements - c * width),
        std::numeric_limits<float>::quiet_NaN());
    GF_RETURN_IF_ERROR(Convert(
        nans.data(), DType::kFloat32,
        static_cast<std::byte*>(bucket.region.grads) + c * width * bytes,
        bucket.region.type, nans.size()));
  }
  return Status();
}

}  // namespace

void gf_csc_config_init(gf_csc_config* config) {
  *config = {sizeof(*config), 32000, 0.85, 0, 0, 1.0F, 1.0F, GF_FLOAT16};
}

gf_status gf_csc_open(const gf_csc_config* config, gf_csc** out) {
  return Guard([&]() -> Status {
    if (!IsGradientType(config->wire_dtype)) {
      return Refuse(StrCat("wire_dtype ", config->wire_dtype,
                           ": expected GF_FLOAT32 to GF_BFLOAT16"));
    }
    gradientflow::CscConfig rules;
    rules.chunk_elements = config->chunk_elements;
    rules.sparsity = config->sparsity;
    rules.warmup_steps = config->warmup_steps;
    rules.zero_kept = true;
    rules.keep_factor = config->keep_factor;
    const Csc csc(rules, config->loss_scale);
    GF_RETURN_IF_ERROR(csc.NewSelector(0, {}).status());
    *out = new gf_csc{csc,
                      static_cast<DType>(config->wire_dtype),
                      config->step,
                      gradientflow::HostCscMemory(),
                      {}};
    return Status();
  });
}

void gf_csc_close(gf_csc* csc) { delete csc; }

gf_status gf_csc_add(gf_csc* csc, size_t elements, int32_t dtype,
                     float* residual, const uint8_t* always_dense,
                     gf_csc_bucket** out) {
  return Guard([&]() -> Status {
    if (!IsGradientType(dtype)) {
      return Refuse(
          StrCat("dtype ", dtype, ": expected GF_FLOAT32 to GF_BFLOAT16"));
    }
    const size_t width = csc->rules.config().chunk_elements;
    const size_t chunks = elements / width + (elements % width != 0 ? 1 : 0);
    auto bucket = std::make_unique<gf_csc_bucket>();
    bucket->rules = &csc->rules;
    bucket->selected.assign(chunks, 1);
    bucket->always_dense.assign(always_dense, always_dense + chunks);
    bucket->slots.resize(chunks);
    bucket->dirty.assign(chunks, 0);
    gradientflow::CscRegion& region = bucket->region;
    region.memory = csc->memory.get();
    region.elements = elements;
    region.type = static_cast<DType>(dtype);
    region.wire = csc->wire;
    region.residual = residual;
    region.slots = bucket->slots.data();
    region.dirty = bucket->dirty.data();
    if (residual != nullptr) FindDirty(region, width);
    Select(bucket.get());
    *out = csc->buckets.emplace_back(std::move(bucket)).get();
    return Status();
  });
}

gf_status gf_csc_drop(gf_csc* csc, size_t first) {
  return Guard([&]() -> Status {
    if (first < csc->buckets.size()) csc->buckets.resize(first);
    return Status();
  });
}

const uint8_t* gf_csc_selected(const gf_csc_bucket* bucket, size_t* chunks) {
  *chunks = bucket->chunks();
  return bucket->selected.data();
}

gf_status gf_csc_restore(gf_csc_bucket* bucket, const uint8_t* selected,
                         size_t chunks) {
  return Guard([&]() -> Status {
    if (chunks != bucket->chunks()) {
      return Refuse(StrCat("a selection of ", chunks, " chunks, expected ",
                           bucket->chunks()));
    }
    bucket->selected.assign(selected, selected + chunks);
    Select(bucket);
    return Status();
  });
}

size_t gf_csc_packed_elements(const gf_csc_bucket* bucket, size_t* marks) {
  if (marks != nullptr) *marks = bucket->kept();
  return bucket->sent_elements + bucket->kept();
}

gf_status gf_csc_pack(gf_csc_bucket* bucket, void* grads, void* packed,
                      float scale, float* norms) {
  return Guard([&]() -> Status {
    if (bucket->region.residual == nullptr) {
      return Refuse("gf_csc_pack: the bucket is not memory of the host");
    }
    bucket->region.grads = grads;
    bucket->region.packed = packed;
    bucket->region.packed_scale = scale;
    bucket->region.norms = norms;
    GF_RETURN_IF_ERROR(
        bucket->rules->Pack(bucket->region, 0, bucket->chunks()));
    return WriteMarks(*bucket);
  });
}

gf_status gf_csc_unpack(gf_csc_bucket* bucket, int32_t* nonfinite) {
  return Guard([&]() -> Status {
    *nonfinite = 0;
    GF_RETURN_IF_ERROR(
        bucket->rules->Unpack(bucket->region, 0, bucket->chunks()));
    return ReadMarks(*bucket, nonfinite);
  });
}

gf_status gf_csc_end_step(gf_csc* csc, int32_t nonfinite) {
  return Guard([&]() -> Status {
    ++csc->step;
    for (const auto& bucket : csc->buckets) {
      if (nonfinite == 0 || bucket->region.residual == nullptr) continue;
      GF_RETURN_IF_ERROR(csc->rules.Skip(bucket->region));
    }
    return Status();
  });
}

gf_status gf_csc_select(gf_csc* csc, const float* norm_sums, size_t chunks) {
  return Guard([&]() -> Status {
    // As if every bucket were filled up to whole chunks.
    std::vector<size_t> always_dense;
    size_t all = 0;
    for (const auto& bucket : csc->buckets) {
      for (const uint8_t always : bucket->always_dense) {
        if (always != 0) always_dense.push_back(all);
        ++all;
      }
    }
    Result<ChunkSelector> selector = csc->rules.NewSelector(
        all * csc->rules.config().chunk_elements, std::move(always_dense));
    if (!selector.ok()) return selector.status();
    GF_RETURN_IF_ERROR(selector.value().Select(csc->step, {norm_sums, chunks}));
    auto next = selector.value().selected().begin();
    for (const auto& bucket : csc->buckets) {
      const auto end = next + static_cast<std::ptrdiff_t>(bucket->chunks());
      bucket->selected.assign(next, end);
      Select(bucket.get());
      next = end;
    }
    return Status();
  });
}

uint64_t gf_csc_step(const gf_csc* csc) { return csc->step; }

gf_status gf_csc_set_loss_scale(gf_csc* csc, float loss_scale, float* factor) {
  return Guard([&]() -> Status {
    if (!(std::isfinite(loss_scale) && loss_scale > 0)) {
      return Refuse(
          StrCat("loss scale: expected a positive number, seen ", loss_scale));
    }
    *factor = csc->rules.SetScale(loss_scale, loss_scale);
    for (const auto& bucket : csc->buckets) {
      if (bucket->region.residual == nullptr) continue;
      GF_RETURN_IF_ERROR(csc->rules.Rescale(bucket->region, *factor));
    }
    return Status();
  });
}

gf_status gf_csc_get_factors(const gf_csc* csc, gf_csc_factors* factors) {
  return Guard([&]() -> Status {
    const gradientflow::CscFactors& rules = csc->rules.factors();
    factors->keep_factor = csc->rules.config().keep_factor;
    factors->kept_norm = rules.kept_norm;
    factors->sent_norm = rules.sent_norm;
    factors->give_back = rules.give_back;
    return Status();
  });
}
