#include "coalesced.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

namespace gft {

bool Coalesced::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const WorkPtr& work) { return work->isCompleted(); });
}

bool Coalesced::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const WorkPtr& work) { return work->isSuccess(); });
}

std::exception_ptr Coalesced::exception() const {
  for (const WorkPtr& work : works_) {
    if (auto error = work->exception()) return error;
  }
  return nullptr;
}

std::vector<at::Tensor> Coalesced::result() {
  std::vector<at::Tensor> all;
  for (const WorkPtr& work : works_) {
    const std::vector<at::Tensor> results = work->result();
    all.insert(all.end(), results.begin(), results.end());
  }
  return all;
}

bool Coalesced::wait(std::chrono::milliseconds timeout) {
  const auto begun = std::chrono::steady_clock::now();
  std::exception_ptr first;
  for (const WorkPtr& work : works_) {
    auto left = timeout;
    if (timeout > kNoTimeout) {
      const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(
          std::chrono::steady_clock::now() - begun);
      left = std::max(timeout - passed, std::chrono::milliseconds(1));
    }
    try {
      work->wait(left);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  return true;
}

void Coalesced::abort() {
  for (const WorkPtr& work : works_) work->abort();
}

c10::intrusive_ptr<c10::ivalue::Future> Coalesced::getFuture() {
  using Self = c10::intrusive_ptr<Coalesced>;
  const auto self = Self::unsafe_reclaim_from_nonowning(this);
  auto all = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()));
  // One count is this function's own, so that the last to finish completes the
  // future.
  const auto left = std::make_shared<std::atomic<size_t>>(works_.size() + 1);
  const auto ended = [self, all, left] {
    if (left->fetch_sub(1) != 1) return;
    for (const WorkPtr& work : self->works_) {
      const auto future = work->getFuture();
      if (future->hasError()) return all->setError(future->exception_ptr());
    }
    std::vector<at::Tensor> results;
    for (const WorkPtr& work : self->works_) {
      for (const c10::IValue& item : work->getFuture()->value().toListRef()) {
        results.push_back(item.toTensor());
      }
    }
    all->markCompleted(c10::IValue(std::move(results)));
  };
  for (const WorkPtr& work : works_) {
    work->getFuture()->addCallback([ended](c10::ivalue::Future&) { ended(); });
  }
  ended();
  return all;
}

}  // namespace gft
