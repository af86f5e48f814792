#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "benchmarks/scaling/backward.h"
#include "benchmarks/scaling/gemm_plan.h"
#include "benchmarks/scaling/gpu.h"
#include "benchmarks/scaling/gradients.h"
#include "benchmarks/scaling/model.h"
#include "benchmarks/scaling/replay.h"
#include "gradientflow/base/clock.h"

namespace gradientflow::benchmarks {

// Backward costs twice the operations of forward: two products of its size,
// one for the gradient of the inputs and one for that of the weights.
inline constexpr double kBackwardPerForward = 2;

// Of one rank, for a pool in the memory of `gpu`.
struct GemmBackwardParts {
  const Model* model = nullptr;  // Borrowed, as all of this.
  const Gradients* gradients = nullptr;
  Waiter* waiter = nullptr;
  Gpu* gpu = nullptr;
  BufferView pool;
  std::vector<std::size_t> offsets;  // Of the tensors, bytes of the pool.
  std::size_t element_bytes = 0;
  int rank = 0;
};

// Backward as real work on a GPU: for every tensor, matrix products of its
// layer's operations, then a copy of its gradient into the pool, all on one
// stream, and ready(i) as soon as that is submitted, as in training.
class GemmBackward final : public Backward {
 public:
  static Result<std::unique_ptr<GemmBackward>> Create(
      const GemmBackwardParts& parts);

  Status Prepare(std::uint64_t step) override;
  Status Run(Clock::Time begin,
             const std::function<void(std::size_t)>& ready) override;
  // By an event after the last gradient.
  Result<Clock::Time> End() override;
  Result<ConstBufferView> Read() override;
  std::optional<double> seconds_alone() const override { return {}; }

 private:
  struct Piece {
    std::size_t tensor;
    std::vector<Gemm> gemms;
    std::size_t offset;  // Bytes.
    std::size_t bytes;
  };

  explicit GemmBackward(const GemmBackwardParts& parts);

  const GemmBackwardParts parts_;
  std::vector<Piece> pieces_;  // In the order of the work.
  std::unique_ptr<Event> event_;
  std::future<Result<Clock::Time>> end_;
};

// All operations of a backward pass of `batch` images.
double BackwardFlops(const ModelTensor& tensor, int batch);

}  // namespace gradientflow::benchmarks
