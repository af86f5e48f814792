#include "gradientflow/csc/csc.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/config/options.h"
#include "gradientflow/device/cuda_device.h"
#include "integrations/c/gradientflow_csc.h"
#include "integrations/c/handles.h"

// CSC in a caller's buckets, with a caller's exchange. csc/csc.h has the rules;
// here each bucket is one region of them. A packed buffer has the elements of
// the selected chunks, then the marks of all chunks.

using gradientflow::CscMemory;
using gradientflow::CscRegion;
using gradientflow::Device;
using gradientflow::DeviceMemory;
using gradientflow::DType;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StrCat;
using gradientflow::c_api::CheckGradientType;
using gradientflow::c_api::Guard;
using gradientflow::c_api::WithDefaults;

namespace {

struct Bucket : gf_csc_bucket {
  gf_csc* owner = nullptr;
  CscRegion region;
  std::vector<uint8_t> sent;   // What `selected` points to.
  std::vector<uint8_t> dense;  // 1 for chunks that every step sends.
  std::vector<uint8_t> dirty;  // Of the host's memory only.
  DeviceMemory slots;
  std::vector<uint32_t> new_slots;  // Copied to `slots` by a pack.
  uint32_t nonfinite = 0;  // Of the host's memory only; 1 if something was.
};

}  // namespace

struct gf_csc {
  gradientflow::Csc rules;
  DType wire;
  uint64_t step;
  std::shared_ptr<Device> device;  // Null: the host's memory.
  DeviceMemory nonfinite;  // A uint32_t: 1 if something was, in this step.
  std::vector<std::unique_ptr<Bucket>> buckets;

  size_t width() const { return rules.config().selection.chunk_elements; }
};

namespace {

Status Invalid(std::string message) {
  return {gradientflow::StatusCode::kInvalidArgument, std::move(message)};
}

Status NotNull(const char* function, std::initializer_list<const void*> all) {
  for (const void* argument : all) {
    if (argument == nullptr) {
      return Invalid(StrCat(function, ": an argument is null"));
    }
  }
  return Status();
}

Status CheckScale(float loss_scale) {
  if (gradientflow::IsLossScale(loss_scale)) return Status();
  return Invalid(
      StrCat("loss scale: expected a positive number, seen ", loss_scale));
}

// Calls `work` with the handle's memory, in the order of the caller's stream.
Status OnStream(const gf_csc& csc, void* stream,
                const std::function<Status(CscMemory*)>& work) {
  if (csc.device == nullptr) {
    return work(gradientflow::HostCscMemory().get());
  }
  const auto wrapped = csc.device->Wrap(stream);
  const auto memory =
      gradientflow::DeviceCscMemory({csc.device.get(), wrapped.get()});
  return memory.ok() ? work(memory.value().get()) : memory.status();
}

CscRegion In(CscMemory* memory, const Bucket& bucket) {
  CscRegion region = bucket.region;
  region.memory = memory;
  return region;
}

Status Allocate(const gf_csc& csc, size_t words, DeviceMemory* out) {
  return OnStream(csc, nullptr, [&](CscMemory* memory) {
    Result<DeviceMemory> made = memory->Allocate(words * sizeof(uint32_t));
    if (!made.ok()) return made.status();
    *out = std::move(made).value();
    return Status();
  });
}

// Derives the slots and the size of the packed buffer from bucket->sent. The
// bucket's last chunk may be short.
void TakeSelection(Bucket* bucket) {
  const size_t width = bucket->owner->width();
  const size_t sent =
      gradientflow::FillSlots(bucket->sent, bucket->new_slots.data());
  bucket->selected = bucket->sent.data();
  bucket->chunks = bucket->sent.size();
  bucket->selected_chunks = sent;
  bucket->packed_elements = sent * width + bucket->chunks;
  if (bucket->chunks > 0 && bucket->sent.back() != 0) {
    bucket->packed_elements -= bucket->chunks * width - bucket->region.elements;
  }
}

// Chooses among the chunks of all buckets. The chunk count is as if every
// bucket were filled up to whole chunks.
Result<gradientflow::ChunkSelector> SelectorOf(const gf_csc& csc) {
  gradientflow::ChunkSelectorOptions config = csc.rules.config().selection;
  for (const auto& bucket : csc.buckets) {
    config.pool_elements += bucket->chunks * config.chunk_elements;
    config.always_dense.insert(config.always_dense.end(), bucket->dense.begin(),
                               bucket->dense.end());
  }
  return gradientflow::ChunkSelector::Create(config);
}

Result<std::unique_ptr<Bucket>> NewBucket(gf_csc* csc,
                                          const gf_csc_bucket_config& config) {
  const auto specs =
      gradientflow::c_api::SpecsOf(config.tensors, config.tensor_count);
  if (!specs.ok()) return specs.status();
  auto bucket = std::make_unique<Bucket>();
  bucket->owner = csc;
  CscRegion& region = bucket->region;
  std::vector<gradientflow::Extent> dense;
  for (const gradientflow::TensorSpec& tensor : specs.value()) {
    if (tensor.always_dense) {
      dense.push_back({region.elements, tensor.elements});
    }
    region.elements += tensor.elements;
  }
  bucket->dense =
      gradientflow::ChunksTouching(dense, region.elements, csc->width());
  bucket->sent.assign(bucket->dense.size(), 1);
  if (config.selected != nullptr) {
    bucket->sent.assign(config.selected,
                        config.selected + config.selected_count);
    GF_RETURN_IF_ERROR(
        gradientflow::CountSelected(bucket->sent, bucket->dense).status());
  }
  bucket->new_slots.resize(bucket->sent.size());
  GF_RETURN_IF_ERROR(Allocate(*csc, bucket->new_slots.size(), &bucket->slots));
  region.type = static_cast<DType>(config.dtype);
  region.wire = csc->wire;
  region.residual = config.residual;
  region.slots = reinterpret_cast<uint32_t*>(bucket->slots.get());
  region.nonfinite = reinterpret_cast<uint32_t*>(csc->nonfinite.get());
  if (csc->device == nullptr) {
    bucket->dirty.assign(bucket->sent.size(), 1);
    region.dirty = bucket->dirty.data();
    region.nonfinite = &bucket->nonfinite;  // Threads share the handle's.
    if (config.residual != nullptr) {
      FindDirty(region, config.residual, csc->width());
    }
  }
  TakeSelection(bucket.get());
  return bucket;
}

}  // namespace

namespace gradientflow::c_api {

Result<gf_csc*> OpenCsc(const gf_csc_config& config,
                        std::shared_ptr<Device> device) {
  GF_RETURN_IF_ERROR(CheckGradientType("wire_dtype", config.wire_dtype));
  GF_RETURN_IF_ERROR(CheckScale(config.loss_scale));
  if (!(config.keep_factor >= 0) || !std::isfinite(config.keep_factor)) {
    return ::Invalid(
        StrCat("keep_factor: expected a finite number of at least 0, seen ",
               config.keep_factor));
  }
  CscOptions options;
  options.selection = {0, config.chunk_elements, config.sparsity,
                       config.warmup_steps};
  options.zero_kept = true;
  options.keep_factor = config.keep_factor;
  GF_RETURN_IF_ERROR(ChunkSelector::Create(options.selection).status());
  std::unique_ptr<gf_csc> csc(new gf_csc{Csc(options, config.loss_scale),
                                         static_cast<DType>(config.wire_dtype),
                                         config.step,
                                         std::move(device),
                                         nullptr,
                                         {}});
  GF_RETURN_IF_ERROR(Allocate(*csc, 1, &csc->nonfinite));
  return csc.release();
}

}  // namespace gradientflow::c_api

void gf_csc_config_init(gf_csc_config* config) {
  *config = {sizeof(*config), 32000, 0.85, 0, 0, 1.0F, 1.0F, GF_FLOAT16, -1};
}

gf_status gf_csc_open(const gf_csc_config* given, gf_csc** out) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_open", {given, out}));
    if (given->struct_bytes < offsetof(gf_csc_config, wire_dtype)) {
      return Invalid(StrCat("gf_csc_open: struct_bytes is ",
                            given->struct_bytes,
                            "; call gf_csc_config_init()"));
    }
    const gf_csc_config config = WithDefaults(*given, gf_csc_config_init);
    std::shared_ptr<Device> device;
    if (config.cuda_device >= 0) {
      auto opened = gradientflow::OpenCudaDevice(config.cuda_device);
      if (!opened.ok()) return opened.status();
      device = std::move(opened).value();
    }
    const Result<gf_csc*> csc =
        gradientflow::c_api::OpenCsc(config, std::move(device));
    if (csc.ok()) *out = csc.value();
    return csc.status();
  });
}

void gf_csc_close(gf_csc* csc) { delete csc; }

gf_status gf_csc_add(gf_csc* csc, const gf_csc_bucket_config* config,
                     gf_csc_bucket** out) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_add", {csc, config, out}));
    GF_RETURN_IF_ERROR(CheckGradientType("dtype", config->dtype));
    Result<std::unique_ptr<Bucket>> bucket = NewBucket(csc, *config);
    if (!bucket.ok()) return bucket.status();
    *out = csc->buckets.emplace_back(std::move(bucket).value()).get();
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

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_csc_pack(gf_csc_bucket* bucket, void* grads, void* packed,
                      float scale, float* norms, void* stream) {
  return Guard([&]() -> Status {
    auto* const ours = static_cast<Bucket*>(bucket);
    GF_RETURN_IF_ERROR(NotNull("gf_csc_pack", {ours, grads, packed, norms}));
    CscRegion& region = ours->region;
    GF_RETURN_IF_ERROR(NotNull("gf_csc_pack: residual", {region.residual}));
    region.grads = grads;
    region.packed = packed;
    region.packed_scale = scale;
    region.norms = norms;
    region.marks = static_cast<std::byte*>(packed) +
                   (ours->packed_elements - ours->chunks) * SizeOf(region.wire);
    return OnStream(*ours->owner, stream, [&](CscMemory* memory) {
      GF_RETURN_IF_ERROR(memory->Copy(ours->slots.get(), ours->new_slots.data(),
                                      ours->chunks * sizeof(uint32_t)));
      return ours->owner->rules.Pack(In(memory, *ours), 0, ours->chunks);
    });
  });
}

gf_status gf_csc_unpack(gf_csc_bucket* bucket, void* stream) {
  return Guard([&]() -> Status {
    auto* const ours = static_cast<Bucket*>(bucket);
    GF_RETURN_IF_ERROR(NotNull("gf_csc_unpack", {ours}));
    if (ours->region.packed == nullptr) {
      return Status(gradientflow::StatusCode::kFailedPrecondition,
                    "gf_csc_unpack: the bucket has not been packed");
    }
    return OnStream(*ours->owner, stream, [&](CscMemory* memory) {
      return ours->owner->rules.Unpack(In(memory, *ours), 0, ours->chunks);
    });
  });
}

gf_status gf_csc_end_step(gf_csc* csc, void* stream) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_end_step", {csc}));
    ++csc->step;
    auto* const word = reinterpret_cast<uint32_t*>(csc->nonfinite.get());
    for (const auto& bucket : csc->buckets) {
      if (std::exchange(bucket->nonfinite, 0) != 0) *word = 1;
    }
    return OnStream(*csc, stream, [&](CscMemory* memory) {
      for (const auto& bucket : csc->buckets) {
        // Null if this step has not packed the bucket.
        void* const packed = std::exchange(bucket->region.packed, nullptr);
        if (packed == nullptr) continue;
        GF_RETURN_IF_ERROR(csc->rules.Skip(In(memory, *bucket), word));
      }
      return memory->Zero(word, sizeof(*word));
    });
  });
}

gf_status gf_csc_select(gf_csc* csc, const float* norm_sums, size_t chunks) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_select", {csc, norm_sums}));
    auto selector = SelectorOf(*csc);
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

gf_status gf_csc_check(const gf_csc* csc) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_check", {csc}));
    const auto selector = SelectorOf(*csc);
    if (!selector.ok()) return selector.status();
    std::vector<uint8_t> sent;
    for (const auto& bucket : csc->buckets) {
      sent.insert(sent.end(), bucket->sent.begin(), bucket->sent.end());
    }
    return selector.value().Check(csc->step, sent);
  });
}

uint64_t gf_csc_step(const gf_csc* csc) {
  return csc == nullptr ? 0 : csc->step;
}

gf_status gf_csc_set_loss_scale(gf_csc* csc, float loss_scale, void* stream,
                                float* factor) {
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(NotNull("gf_csc_set_loss_scale", {csc, factor}));
    GF_RETURN_IF_ERROR(CheckScale(loss_scale));
    *factor = csc->rules.SetScale(loss_scale, loss_scale);
    return OnStream(*csc, stream, [&](CscMemory* memory) {
      for (const auto& bucket : csc->buckets) {
        if (bucket->region.residual == nullptr) continue;
        GF_RETURN_IF_ERROR(csc->rules.Rescale(In(memory, *bucket), *factor));
      }
      return Status();
    });
  });
}
