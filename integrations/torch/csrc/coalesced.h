#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace gft {

// Several operations that are waited for as one. Thread-safe.
class Coalesced final : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  Coalesced(int rank, std::vector<WorkPtr> works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  // Waits for all operations even if one throws, then rethrows the first error.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override {}
  void abort() override;
  // Holds the results of all operations, in order.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace gft
