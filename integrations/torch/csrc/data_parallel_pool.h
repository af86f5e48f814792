#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "session.h"

namespace gft {

// The parameters' gradients as views of a session's pool. Where a parameter
// has another type than the pool, its gradient is a tensor of its own that is
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
  // All of it, flat.
  const at::Tensor& all() const { return all_; }

  bool HasGradient(size_t i) const;
  // The pool gets `gradient`, and parameter i the view: whether that is what
  // accumulating the gradient would amount to. If not, nothing happens.
  bool PutIn(size_t i, const at::Tensor& gradient);
  // The pool gets the values of parameter i's gradient, which becomes a view
  // where the types agree. REQUIRES: HasGradient(i).
  void TakeIn(size_t i);
  // Parameter i's gradient gets the values of the pool.
  void GiveOut(size_t i);
  // Parameter i's gradient, if it is a view, becomes a copy.
  void MoveOut(size_t i);
  // Whether the pool has a value for parameter i that is not zero. Waits for
  // the device.
  bool HasValues(size_t i) const;
  // What the optimiser is to take for parameter i's gradient is in the pool:
  // one that the user has put in its place is copied. Throws c10::ValueError if
  // the parameter is laid out in memory in another way than when the pool was
  // made. REQUIRES: HasGradient(i).
  void Settle(size_t i);
  // Gradients that are views become copies, and outlive the session; or, if
  // not to be kept, undefined, and the pool is not read.
  void Detach(bool keep);

 private:
  // Gradient i in the pool, as a tensor whose storage is its own.
  at::Tensor MakeView(size_t i) const;
  // What parameter i gets for a gradient.
  const at::Tensor& View(size_t i);
  // By where the memory is: `.data =`, share_memory_() and a queue to another
  // process put other memory under a tensor that stays the same.
  bool IsView(size_t i, const at::Tensor& gradient) const;

  const std::vector<std::string> names_;
  const std::vector<at::Tensor> parameters_;
  const std::shared_ptr<Session> session_;
  at::Tensor all_;
  // Nobody else has these, nor their storages: they stay where the pool is.
  std::vector<at::Tensor> views_;
  std::vector<at::Tensor> given_;  // Undefined: none yet.
};

// A parameter's name with its shape and, unless it is contiguous, its
// dimensions' order in the pool: "conv.weight [64x3x11x11 in order 0,2,3,1]".
// Ranks and states that agree on these lay the pool out alike.
std::string DescriptionOf(const std::string& name, const at::Tensor& parameter);

// The type of the pool for these parameters: their own if it is one, and of
// float32, float16 and bfloat16; else float32.
at::ScalarType PoolTypeFor(const std::vector<at::Tensor>& parameters);

}  // namespace gft
