#include "gradientflow/csc/csc.h"

#include <algorithm>
#include <utility>

namespace gradientflow {

// With s the loss scale and l `left_scaled`, both times the true gradient g:
// before the exchange memory holds s * g, after it l * g. The wire carries s *
// g. The residual is in units of s * g, and the norms are those of g.
float Csc::SetScale(float loss_scale, float left_scaled) {
  factors_.kept_norm = 1.0F / loss_scale;
  factors_.sent_norm = config_.share / left_scaled;
  factors_.unpack = left_scaled / loss_scale;
  factors_.give_back = loss_scale / left_scaled * config_.share;
  return loss_scale / std::exchange(loss_scale_, loss_scale);
}

kernels::ChunkRange Csc::Whole(const CscRegion& region) const {
  const std::size_t chunk = config_.selection.chunk_elements;
  return Range(region, 0, (region.elements + chunk - 1) / chunk);
}

Status Csc::Rescale(const CscRegion& region, float factor) const {
  if (factor == 1.0F) return {};
  const kernels::ChunkRescaleArgs args = {Whole(region), region.residual,
                                          factor, region.dirty};
  return region.memory->KernelStatus(
      "chunk_rescale",
      region.memory->kernels().chunk_rescale(args, region.memory->stream()));
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
  args.scale = region.packed_scale;
  args.zero_kept = config_.zero_kept;
  args.keep_factor = config_.keep_factor;
  args.norm_scale = factors_.kept_norm;
  args.norms = region.norms;
  args.dirty = region.dirty;
  return region.memory->KernelStatus(
      "chunk_residual",
      region.memory->kernels().chunk_residual(args, region.memory->stream()));
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
  // A float32 wire brings the final value: the collective has unscaled it.
  args.scale = region.wire == DType::kFloat32 ? 1.0F : factors_.unpack;
  args.norm_scale = factors_.sent_norm;
  args.norms = region.norms;
  args.nonfinite = region.nonfinite;
  return region.memory->KernelStatus(
      "chunk_unpack",
      region.memory->kernels().chunk_unpack(args, region.memory->stream()));
}

Status Csc::Skip(const CscRegion& region) const {
  kernels::ChunkRestoreArgs args = {};
  args.range = Whole(region);
  args.slots = region.slots;
  args.grads = region.grads;
  args.type = region.type;
  args.residual = region.residual;
  args.scale = factors_.give_back;
  args.dirty = region.dirty;
  return region.memory->KernelStatus(
      "chunk_restore",
      region.memory->kernels().chunk_restore(args, region.memory->stream()));
}

void FindDirty(const CscRegion& region, std::size_t chunk_elements) {
  for (std::size_t begin = 0; begin < region.elements;
       begin += chunk_elements) {
    const float* chunk = region.residual + begin;
    const float* end =
        chunk + std::min(chunk_elements, region.elements - begin);
    const bool zero = std::all_of(chunk, end, [](float v) { return v == 0; });
    region.dirty[begin / chunk_elements] = zero ? 0 : 1;
  }
}

}  // namespace gradientflow
