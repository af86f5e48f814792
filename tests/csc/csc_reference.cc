#include "tests/csc/csc_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gradientflow::testing {

CscReference::CscReference(const CscSettings& settings)
    : settings_(settings),
      next_((settings.elements + settings.chunk_elements - 1) /
                settings.chunk_elements,
            1),
      norms_(next_.size()),
      pool_(static_cast<std::size_t>(settings.ranks),
            std::vector<double>(settings.elements)),
      hg_(pool_),
      hu_(settings.elements),
      w_(settings.elements) {}

void CscReference::Step(const std::vector<std::vector<double>>& gradients) {
  selection_ = next_;
  norms_.assign(chunks(), 0);
  for (std::size_t i = 0; i < settings_.elements; ++i) Exchange(i, gradients);
  ++step_;
  SelectNext();
}

void CscReference::Exchange(std::size_t i,
                            const std::vector<std::vector<double>>& g) {
  const std::size_t chunk = ChunkOf(i);
  double sum = 0;
  for (std::size_t r = 0; r < g.size(); ++r) {
    const double with_history = g[r][i] + hg_[r][i];
    if (selection_[chunk] != 0) {
      hg_[r][i] = 0;
      sum += with_history;
    } else {
      hg_[r][i] = settings_.momentum_residual
                      ? settings_.momentum * with_history
                      : with_history;
      const bool shown = settings_.momentum_residual && !settings_.zero_kept;
      pool_[r][i] = shown ? g[r][i] : 0;
      norms_[chunk] += std::fabs(with_history);
    }
  }
  if (selection_[chunk] == 0) return;
  norms_[chunk] += std::fabs(sum);  // Each rank adds 1/N of it.
  const double mean = sum / settings_.ranks;
  for (auto& pool : pool_) pool[i] = mean;
  hu_[i] = settings_.momentum * hu_[i] + settings_.lr * mean;
  w_[i] -= hu_[i];
}

void CscReference::SelectNext() {
  const double share =
      settings_.warmup_steps == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(step_) /
                              static_cast<double>(settings_.warmup_steps));
  const auto total = static_cast<double>(chunks());
  const auto k = static_cast<std::size_t>(std::clamp(
      std::round((1 - settings_.sparsity * share) * total), 1.0, total));
  next_.assign(chunks(), 0);
  for (std::size_t i = 0; i < settings_.always_dense.size(); ++i) {
    if (settings_.always_dense[i] != 0) next_[ChunkOf(i)] = 1;
  }
  std::vector<std::size_t> order(chunks());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(
      order.begin(), order.end(),
      [this](std::size_t a, std::size_t b) { return norms_[a] > norms_[b]; });
  auto chosen = static_cast<std::size_t>(
      std::count(next_.begin(), next_.end(), std::uint8_t{1}));
  for (std::size_t c : order) {
    if (chosen >= k) break;
    if (next_[c] != 0) continue;
    next_[c] = 1;
    ++chosen;
  }
}

}  // namespace gradientflow::testing
