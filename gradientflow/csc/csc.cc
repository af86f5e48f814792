#include "gradientflow/csc/csc.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gradientflow {
namespace {

// Where the kernels keep track of what is kept back, if they can.
std::uint8_t* KernelDirty(const CscRegion& region) {
  return region.memory->asynchronous() ? nullptr : region.dirty;
}

// Calls the kernel for args.range or, if the memory has workers, for each of
// its chunks.
template <typename Args>
Status ForChunks(const CscRegion& region, const char* name,
                 int (*kernel)(const Args&, void*), const Args& args) {
  const auto call = [&](const Args& part) {
    return region.memory->KernelStatus(name,
                                       kernel(part, region.memory->stream()));
  };
  if (region.memory->workers() == nullptr) return call(args);
  const kernels::ChunkRange& range = args.range;
  return RunPass(region.memory->workers(), range.count,
                 range.count * range.chunk_elements, [&](std::size_t i) {
                   Args one = args;
                   one.range.first += i;
                   one.range.count = 1;
                   return call(one);
                 });
}

}  // namespace

// Let g be the true gradient, s the loss scale and l `left_scaled`. Memory
// holds s * g before the exchange and l * g after it. The wire carries s * g.
// The residual is in units of s * g, and the norms are those of g.
float Csc::SetScale(float loss_scale, float left_scaled) {
  factors_.kept_norm = 1.0F / loss_scale;
  factors_.sent_norm = config_.share / left_scaled;
  factors_.unpack = left_scaled / loss_scale;
  factors_.give_back = loss_scale / left_scaled * config_.share;
  return loss_scale / std::exchange(loss_scale_, loss_scale);
}

kernels::ChunkRange Csc::Whole(const CscRegion& region) const {
  return Range(
      region, 0,
      kernels::ChunkCount(region.elements, config_.selection.chunk_elements));
}

// The kernels of a device do not know which gradients were sent. A caller may
// still read those, so they must not change.
Status Csc::Rescale(const CscRegion& region, float factor) const {
  if (factor == 1.0F) return {};
  kernels::ChunkRescaleArgs args = {Whole(region), region.residual,
                                    factor,        KernelDirty(region),
                                    region.grads,  region.type};
  if (!region.memory->asynchronous() || region.residual != nullptr) {
    return ForChunks(region, "chunk_rescale",
                     region.memory->kernels().chunk_rescale, args);
  }
  GF_RETURN_IF_ERROR(ForParts(region, [&](const Part& part) {
    if (!part.dirty) return Status();
    args.range = part.range;
    return ForChunks(region, "chunk_rescale",
                     region.memory->kernels().chunk_rescale, args);
  }));
  // Backward adds to the result, in an order of its own.
  return region.memory->Synchronize();
}

Status Csc::Pack(const CscRegion& region, std::size_t first,
                 std::size_t count) const {
  kernels::ChunkResidualArgs args = {};
  args.range = Range(region, first, count);
  args.slots = region.slots;
  args.grads = region.grads;
  args.type = region.type;
  args.residual = region.residual;
  args.packed = region.packed;
  args.packed_type = region.wire;
  args.first_slot = region.first_slot;
  args.scale = region.packed_scale;
  args.zero_kept = config_.zero_kept;
  args.keep_factor = config_.keep_factor;
  args.norm_scale = factors_.kept_norm;
  args.norms = region.norms;
  args.dirty = KernelDirty(region);
  GF_RETURN_IF_ERROR(ForChunks(region, "chunk_residual",
                               region.memory->kernels().chunk_residual, args));
  if (region.marks == nullptr) return Status();
  // 0 * norm is 0, or NaN if the norm is not finite. Marks of sent chunks are
  // ignored, since their norms are old.
  return region.memory->Convert({.src = region.norms + first,
                                 .src_type = DType::kFloat32,
                                 .dst = static_cast<std::byte*>(region.marks) +
                                        first * SizeOf(region.wire),
                                 .dst_type = region.wire,
                                 .settled = nullptr,
                                 .n = count,
                                 .scale = 0,
                                 .nonfinite = nullptr});
}

Status Csc::Pack(const CscRegion& region,
                 std::span<const std::size_t> chunks) const {
  return RunPass(region.memory->workers(), chunks.size(),
                 chunks.size() * config_.selection.chunk_elements,
                 [&](std::size_t i) { return Pack(region, chunks[i], 1); });
}

Status Csc::Unpack(const CscRegion& region, std::size_t first,
                   std::size_t count) const {
  kernels::ChunkUnpackArgs args = {};
  args.range = Range(region, first, count);
  args.slots = region.slots;
  args.grads = region.grads;
  args.type = region.type;
  args.packed = region.packed;
  args.packed_type = region.wire;
  args.first_slot = region.first_slot;
  // A float32 wire brings the final value: the collective has unscaled it.
  args.scale = region.wire == DType::kFloat32 ? 1.0F : factors_.unpack;
  args.norm_scale = factors_.sent_norm;
  args.norms = region.norms;
  args.nonfinite = region.nonfinite;
  args.marks = region.marks;
  return ForChunks(region, "chunk_unpack",
                   region.memory->kernels().chunk_unpack, args);
}

Status Csc::Unpack(const CscRegion& region,
                   std::span<const std::size_t> chunks) const {
  return RunPass(region.memory->workers(), chunks.size(),
                 chunks.size() * config_.selection.chunk_elements,
                 [&](std::size_t i) { return Unpack(region, chunks[i], 1); });
}

Status Csc::Skip(const CscRegion& region, const std::uint32_t* only_if) const {
  kernels::ChunkRestoreArgs args = {};
  args.range = Whole(region);
  args.slots = region.slots;
  args.grads = region.grads;
  args.type = region.type;
  args.residual = region.residual;
  args.scale = factors_.give_back;
  args.dirty = KernelDirty(region);
  args.only_if = only_if;
  args.hidden = region.hidden;
  args.hidden_count = region.hidden_count;
  return ForChunks(region, "chunk_restore",
                   region.memory->kernels().chunk_restore, args);
}

void Csc::NoteKept(const CscRegion& region, std::span<const std::uint8_t> sent,
                   bool skipped) {
  if (!region.memory->asynchronous() || region.dirty == nullptr) return;
  for (std::size_t c = 0; c < sent.size(); ++c) {
    region.dirty[c] = skipped || sent[c] == 0 ? 1 : 0;
  }
}

// On the host a part is a chunk, and threads share them. Elsewhere each part
// costs a call of the device, so it is as long as it can be.
Status Csc::ForParts(const CscRegion& region,
                     const PartFunction& function) const {
  const std::size_t width = config_.selection.chunk_elements;
  const auto call = [&](std::size_t first, std::size_t end) {
    const std::size_t begin = first * width;
    return function(
        {Range(region, first, end - first), region.dirty[first] != 0,
         static_cast<std::byte*>(region.grads) + begin * SizeOf(region.type),
         begin, std::min(region.elements, end * width) - begin});
  };
  const std::size_t chunks = Whole(region).count;
  if (!region.memory->asynchronous()) {
    return RunPass(region.memory->workers(), chunks, region.elements,
                   [&](std::size_t c) { return call(c, c + 1); });
  }
  for (std::size_t first = 0; first < chunks;) {
    std::size_t end = first + 1;
    while (end < chunks && region.dirty[end] == region.dirty[first]) ++end;
    GF_RETURN_IF_ERROR(call(first, end));
    first = end;
  }
  return Status();
}

Status Csc::ZeroSent(const CscRegion& region) const {
  return ForParts(region, [&](const Part& part) {
    if (part.dirty) return Status();
    return region.memory->Zero(part.grads, part.count * SizeOf(region.type));
  });
}

Status Csc::ReadKept(const CscRegion& region, float* residual) const {
  return ForParts(region, [&](const Part& part) {
    if (part.dirty) {
      return region.memory->ReadGradients(part.grads, region.type,
                                          residual + part.begin, part.count);
    }
    std::fill_n(residual + part.begin, part.count, 0.0F);
    return Status();
  });
}

Status Csc::WriteKept(const CscRegion& region, const float* residual) const {
  return ForParts(region, [&](const Part& part) {
    return region.memory->WriteGradients(residual + part.begin, part.grads,
                                         region.type, part.count);
  });
}

void FindDirty(const CscRegion& region, const float* residual,
               std::size_t chunk_elements) {
  for (std::size_t begin = 0; begin < region.elements;
       begin += chunk_elements) {
    const float* chunk = residual + begin;
    const float* end =
        chunk + std::min(chunk_elements, region.elements - begin);
    const bool zero = std::all_of(chunk, end, [](float v) { return v == 0; });
    region.dirty[begin / chunk_elements] = zero ? 0 : 1;
  }
}

}  // namespace gradientflow
