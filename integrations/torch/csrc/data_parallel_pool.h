#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "session.h"

namespace gft {

// The parameters' gradients as views of a session's pool. If a parameter has
// another type than the pool, its gradient is a tensor of its own that is
// copied in and out.
//
// Not thread-safe: calls for one parameter come one after the other.
class GradientPool {
 public:
  // parameters[i] is tensor i of the session, on the device of the pool, which
  // has type `pool_type`. The session lives as long as the pool or any view.
  GradientPool(std::shared_ptr<Session> session, at::ScalarType pool_type,
               std::vector<std::string> names,
               std::vector<at::Tensor> parameters);
  GradientPool(const GradientPool&) = delete;
  GradientPool& operator=(const GradientPool&) = delete;

  size_t size() const { return parameters_.size(); }
  const std::string& name(size_t i) const { return names_[i]; }
  const at::Tensor& parameter(size_t i) const { return parameters_[i]; }
  // The whole pool, flat, with its padding, which has to stay zero.
  const at::Tensor& all() const { return all_; }

  bool HasGradient(size_t i) const;
  // Copies `gradient` into the pool and gives parameter i the view, if that has
  // the same effect as accumulating the gradient. Otherwise does nothing and
  // returns false.
  bool PutIn(size_t i, const at::Tensor& gradient);
  // Copies parameter i's gradient into the pool; if the types agree, the
  // gradient becomes a view. REQUIRES: HasGradient(i).
  void TakeIn(size_t i);
  // Gives parameter i's gradient the values of the pool.
  void GiveOut(size_t i);
  // Turns parameter i's gradient, if it is a view, into a copy.
  void MoveOut(size_t i);
  // Those of the parameters for which the pool has a value that is finite and
  // not zero. Waits for the device, once; not if there are no parameters.
  std::vector<size_t> WithValues(const std::vector<size_t>& parameters) const;
  // Makes sure that the pool has the gradient that the optimiser should use for
  // parameter i: copies one that the user has put in its place. Throws
  // c10::ValueError if the parameter's layout in memory has changed since the
  // pool was made. REQUIRES: HasGradient(i).
  void Settle(size_t i);
  // If `keep`, gradients that are views become copies, which outlive the
  // session. Else they become undefined, and the pool is not read.
  void Detach(bool keep);

 private:
  // Gradient i in the pool, as a tensor with a storage of its own.
  at::Tensor MakeView(size_t i) const;
  // The tensor that parameter i gets as its gradient.
  const at::Tensor& View(size_t i);
  // Compares memory, not tensors: `.data =`, share_memory_() and a queue to
  // another process put other memory under the same tensor.
  bool IsView(size_t i, const at::Tensor& gradient) const;

  const std::vector<std::string> names_;
  const std::vector<at::Tensor> parameters_;
  const std::shared_ptr<Session> session_;
  at::Tensor all_;
  // Nobody else holds these tensors or their storages, so they stay in the
  // pool.
  std::vector<at::Tensor> views_;
  std::vector<at::Tensor> given_;  // Undefined if none was given yet.
};

// A parameter's name with its shape and, unless it is contiguous, the order of
// its dimensions in the pool: "conv.weight [64x3x11x11 in order 0,2,3,1]".
// Ranks and states with the same descriptions lay the pool out in the same way.
std::string DescriptionOf(const std::string& name, const at::Tensor& parameter);

// The type of the pool for these parameters: their common type if it is
// float32, float16 or bfloat16, else float32.
at::ScalarType PoolTypeFor(const std::vector<at::Tensor>& parameters);

}  // namespace gft
