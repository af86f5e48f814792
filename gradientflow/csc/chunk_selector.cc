#include "gradientflow/csc/chunk_selector.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "kernels/chunk_kernels.h"

namespace gradientflow {
namespace {

using kernels::ChunkCount;

Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

}  // namespace

std::size_t FillSlots(std::span<const std::uint8_t> selected,
                      std::uint32_t* slots) {
  std::uint32_t next = 0;
  for (std::uint8_t sent : selected) {
    *slots++ = sent != 0 ? next++ : kernels::kNotSent;
  }
  return next;
}

std::vector<std::uint8_t> ChunksTouching(std::span<const Extent> ranges,
                                         std::size_t elements,
                                         std::size_t chunk_elements) {
  assert(chunk_elements > 0);
  std::vector<std::uint8_t> chunks(ChunkCount(elements, chunk_elements), 0);
  for (const Extent& range : ranges) {
    if (range.count == 0) continue;
    const std::size_t last = (range.begin + range.count - 1) / chunk_elements;
    for (std::size_t c = range.begin / chunk_elements; c <= last; ++c) {
      chunks[c] = 1;
    }
  }
  return chunks;
}

Result<std::size_t> CountSelected(std::span<const std::uint8_t> selected,
                                  std::span<const std::uint8_t> always_dense) {
  if (selected.size() != always_dense.size()) {
    return Invalid(StrCat("the selection has ", selected.size(),
                          " chunks, expected ", always_dense.size()));
  }
  std::size_t count = 0;
  for (std::size_t c = 0; c < selected.size(); ++c) {
    if (selected[c] > 1 || selected[c] < always_dense[c]) {
      return Invalid(StrCat(
          "the selection has ", int{selected[c]}, " for chunk ", c,
          ", expected ", always_dense[c] != 0 ? "1 (always dense)" : "0 or 1"));
    }
    count += selected[c];
  }
  return count;
}

Result<ChunkSelector> ChunkSelector::Create(
    const ChunkSelectorOptions& config) {
  if (config.chunk_elements == 0) {
    return Invalid("chunk_elements: expected at least 1, seen 0");
  }
  if (!(config.sparsity >= 0 && config.sparsity < 1)) {
    return Invalid(
        StrCat("sparsity: expected a value in [0, 1), seen ", config.sparsity));
  }
  const std::size_t chunks =
      ChunkCount(config.pool_elements, config.chunk_elements);
  const std::size_t seen = config.always_dense.size();
  if (seen != 0 && seen != chunks) {
    return Invalid(StrCat("always-dense chunks: expected a byte for each of ",
                          chunks, ", seen ", seen));
  }
  return ChunkSelector(config);
}

ChunkSelector::ChunkSelector(const ChunkSelectorOptions& config)
    : config_(config),
      always_dense_(config.always_dense),
      selected_(ChunkCount(config.pool_elements, config.chunk_elements), 1),
      selected_count_(selected_.size()),
      slots_(selected_.size()),
      workspace_(kernels::TopKWorkspaceBytes(selected_.size())) {
  always_dense_.resize(chunks(), 0);
  always_dense_count_ = static_cast<std::size_t>(
      std::count(always_dense_.begin(), always_dense_.end(), 1));
  FillSlots(selected_, slots_.data());
}

Extent ChunkSelector::chunk(std::size_t c) const {
  assert(c < chunks());
  const std::size_t begin = c * config_.chunk_elements;
  return {begin,
          std::min(config_.chunk_elements, config_.pool_elements - begin)};
}

// k(t) of the header. Always-dense chunks may be more than that.
std::size_t ChunkSelector::CountAt(std::uint64_t step) const {
  if (step == 0 || chunks() == 0) return chunks();
  const double ramp = step < config_.warmup_steps
                          ? static_cast<double>(step) /
                                static_cast<double>(config_.warmup_steps)
                          : 1.0;
  const double share = 1.0 - config_.sparsity * ramp;
  const double k = std::round(share * static_cast<double>(chunks()));
  const std::size_t wanted =
      std::clamp(static_cast<std::size_t>(k), std::size_t{1}, chunks());
  return std::max(wanted, always_dense_count_);
}

// The kernel fills slots_ and selected_ in one pass over the norms.
Status ChunkSelector::Select(std::uint64_t step,
                             std::span<const float> norm_sums) {
  if (norm_sums.size() != chunks()) {
    return Invalid(StrCat("chunk norms for step ", step, ": expected ",
                          chunks(), ", one per chunk, seen ",
                          norm_sums.size()));
  }
  const int error =
      kernels::CpuChunkKernels().top_k({.norms = norm_sums.data(),
                                        .always = always_dense_.data(),
                                        .chunks = chunks(),
                                        .k = CountAt(step),
                                        .slots = slots_.data(),
                                        .selected = selected_.data(),
                                        .workspace = workspace_.data(),
                                        .nonfinite = nullptr},
                                       nullptr);
  if (error != 0) return Invalid(StrCat(chunks(), " chunks are too many"));
  selected_count_ = CountAt(step);
  return {};
}

Status ChunkSelector::Check(std::uint64_t step,
                            std::span<const std::uint8_t> selected) const {
  const Result<std::size_t> count = CountSelected(selected, always_dense_);
  if (!count.ok()) return count.status();
  if (count.value() == CountAt(step)) return {};
  return Invalid(StrCat("the selection for step ", step, " has ", count.value(),
                        " of ", chunks(), " chunks, expected ", CountAt(step)));
}

Status ChunkSelector::Restore(std::uint64_t step,
                              std::span<const std::uint8_t> selected) {
  GF_RETURN_IF_ERROR(Check(step, selected));
  selected_.assign(selected.begin(), selected.end());
  selected_count_ = CountAt(step);
  FillSlots(selected_, slots_.data());
  return {};
}

}  // namespace gradientflow
