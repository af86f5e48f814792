#pragma once

#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data_parallel_pool.h"
#include "library.h"
#include "session.h"

namespace gft {

struct DataParallelConfig {
  at::ScalarType pool_type = at::kFloat;
  // Whether the session was opened with a "sparsity", and with "zero_kept".
  bool sparse = false;
  uint64_t chunk_elements = 0;  // Sparse only.
  // Of the optimiser that the residual is kept for; of any, if none.
  std::optional<double> momentum;
  float loss_scale = 1.0F;  // That the session was opened with.
  // Ask which parameters a rank used, and leave alone the gradients of others,
  // usually undefined; else they become zero.
  bool find_unused = true;
};

// Averages the gradients of a model over the ranks of a session, as backward
// makes them.
//
//   before AccumulateGrad of parameter i -> Take(i): into the pool at once, if
//                                           nobody else wants to see it first
//   after it -> OnGradient(i) -> gf_session_ready(i)
//   end of backward -> Finish(): what got no gradient is absent, and
//   gf_session_finish_step() waits for the rest.
//
// The hooks are the nodes', in C++: backward runs them without the GIL, on its
// own threads. All else is called between backward passes.
class DataParallel : public std::enable_shared_from_this<DataParallel> {
 public:
  // parameters[i], distinct leaves that require gradients, all on one device,
  // is tensor i of the session, where only this object takes steps.
  static std::shared_ptr<DataParallel> Make(std::shared_ptr<Session> session,
                                            std::vector<std::string> names,
                                            std::vector<at::Tensor> parameters,
                                            const DataParallelConfig& config);
  ~DataParallel();

  // Before a forward pass. Throws if the job has failed, or if a backward pass
  // did not come to its end; then no more steps are possible, on any rank.
  void BeginForward();
  // `output` of a forward pass: the backward pass that reaches it ends a step
  // when it ends. (Were it told by the first gradient, a backward pass inside
  // backward, as a re-entrant checkpoint runs, would end the step too soon.)
  void Watch(const at::Tensor& output);
  // Off: gradients only add up on this rank.
  void SetSync(bool on) { sync_ = on; }
  // What losses are multiplied with from the next step on; sparse only. The
  // residual is kept without it, gradients come out with it.
  void SetLossScale(float scale);

  // gf_session_optimizer_step_groups() on the parameters, which are float32 and
  // dense. group_of[i]: of parameter i, -1 if it is left alone; as those are
  // that have no gradient.
  void OptimizerStep(const std::vector<gf_optimizer>& groups,
                     std::vector<int32_t> group_of);

  const gf_step_stats& stats() const { return stats_; }
  const DataParallelConfig& config() const { return config_; }
  std::vector<uint8_t> SaveState() const;
  // A collective. A rank that has no state to restore takes part with one of no
  // bytes, which is refused: on all ranks, then.
  void RestoreState(const uint8_t* state, size_t bytes);
  const Session& session() const;

  // Removes the hooks; gradients become ordinary tensors, and the session
  // closes once nothing refers to it. Again: nothing.
  void Close();

 private:
  class TakeHook;
  class ReadyHook;

  DataParallel(std::shared_ptr<Session> session,
               std::unique_ptr<GradientPool> pool,
               const DataParallelConfig& config);
  void AddHooks();
  // Whether `gradient`, which AccumulateGrad would keep a copy of, went into
  // the pool instead, and is the parameter's.
  bool Take(size_t i, const at::Tensor& gradient);
  void OnGradient(size_t i);
  // Within backward: opens a step that ends with the pass now running.
  bool ReachesParameters() const;
  void Begin();
  void Finish();
  // What got no gradient in this pass: by parameter, whether it has one.
  std::vector<uint8_t> HandOverTheRest(gf_session* session);
  // Gradients become what the pool holds, for parameters that are in use.
  void GiveOut(const std::vector<uint8_t>& used);
  void ShowSparse();
  void CheckNotBroken() const;
  // Of the pool's device, for this thread; none on the CPU.
  std::optional<c10::Stream> CurrentStream() const;
  // The session's stream is the current one from here on.
  void SetStream();
  // What `after` is given from now on comes after what `before` was given.
  static void Follow(const std::optional<c10::Stream>& after,
                     const std::optional<c10::Stream>& before);

  std::shared_ptr<Session> session_;
  std::unique_ptr<GradientPool> pool_;
  const DataParallelConfig config_;
  struct Hooked {
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) node;
    const torch::autograd::FunctionPreHook* take;
    uintptr_t ready;
  };
  std::vector<Hooked> hooked_;

  bool sync_ = true;
  float loss_scale_;             // In force in the session,
  float shown_scale_ = 1.0F;     // and what gradients come out with.
  bool restored_scale_ = false;  // The session has a state's instead, for now.
  std::optional<c10::Stream> stream_;  // The session's, with a GPU.
  std::mutex begin_;
  std::atomic<bool> open_{false};  // A backward pass that ends a step runs.
  std::vector<uint8_t> marked_;    // By parameter: handed over in this step.
  std::vector<uint8_t> taken_;     // By parameter: by Take(), just now.
  std::string broken_;             // Why no more steps can be taken.
  uint64_t steps_ = 0;             // Taken by this object.
  gf_step_stats stats_{};
};

}  // namespace gft
