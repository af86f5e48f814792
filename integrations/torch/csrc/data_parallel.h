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
  // The momentum of the optimiser that the residual is kept for; none: any
  // optimiser.
  std::optional<double> momentum;
  float loss_scale = 1.0F;  // The scale that the session was opened with.
  // True: ask all ranks which parameters they used, and leave the gradients of
  // the others alone, usually undefined. False: those gradients become zero.
  bool find_unused = true;
};

// Averages the gradients of a model over the ranks of a session, while backward
// makes them.
//
//   before AccumulateGrad of parameter i -> Take(i): into the pool at once, if
//                                           nobody else wants to see it first
//   after it -> OnGradient(i) -> gf_session_ready(i)
//   end of backward -> Finish(): what got no gradient is absent. Then
//   gf_session_finish_step_async() makes the stream wait for the exchange, but
//   not the host.
//
// The hooks are attached to autograd's nodes, in C++: backward runs them
// without the GIL, on its own threads. All other functions are called between
// backward passes.
class DataParallel : public std::enable_shared_from_this<DataParallel> {
 public:
  // parameters[i] is tensor i of the session. The parameters are distinct
  // leaves that require gradients, all on one device, and only this object
  // takes steps of the session.
  static std::shared_ptr<DataParallel> Make(std::shared_ptr<Session> session,
                                            std::vector<std::string> names,
                                            std::vector<at::Tensor> parameters,
                                            const DataParallelConfig& config);
  ~DataParallel();

  // To be called before a forward pass. Throws if the job has failed, or if a
  // backward pass did not come to its end: then no rank can take more steps.
  void BeginForward();
  // `output` is that of a forward pass: the backward pass that reaches it ends
  // a step when it ends. (If the first gradient began the step instead, a
  // backward pass inside backward, such as that of a re-entrant checkpoint,
  // would end it too soon.)
  void Watch(const at::Tensor& output);
  // Off: gradients only add up on this rank.
  void SetSync(bool on) { sync_ = on; }
  // The factor of losses from the next step on; sparse only. The residual is
  // kept without this factor, and gradients come out with it.
  void SetLossScale(float scale);

  // Calls gf_session_optimizer_step_groups() on the parameters, which are
  // float32 and dense. group_of[i] is the group of parameter i, or -1 to leave
  // it alone; parameters without a gradient are left alone too.
  void OptimizerStep(const std::vector<gf_optimizer>& groups,
                     std::vector<int32_t> group_of);

  // Those of the latest step whose result is known: the last one on the CPU,
  // the one before it if NCCL exchanges.
  const gf_step_stats& stats() const { return stats_; }
  const DataParallelConfig& config() const { return config_; }
  std::vector<uint8_t> SaveState() const;
  // A collective. A rank that has no state to restore takes part with an empty
  // one, which is refused on all ranks.
  void RestoreState(const uint8_t* state, size_t bytes);
  const Session& session() const;

  // Removes the hooks and turns gradients into ordinary tensors; the session
  // closes once nothing refers to it. A second call does nothing.
  void Close();

 private:
  class TakeHook;
  class ReadyHook;

  DataParallel(std::shared_ptr<Session> session,
               std::unique_ptr<GradientPool> pool,
               const DataParallelConfig& config);
  void AddHooks();
  // Moves `gradient`, of which AccumulateGrad would keep a copy, into the pool
  // instead, as the parameter's gradient. Returns whether it did.
  bool Take(size_t i, const at::Tensor& gradient);
  void OnGradient(size_t i);
  // Called within backward: opens a step that ends with the running pass.
  bool ReachesParameters() const;
  void Begin();
  void Finish();
  void EndStep(gf_session* session);
  // Hands over what got no gradient in this pass. Returns, by parameter,
  // whether it has a gradient.
  std::vector<uint8_t> HandOverTheRest(gf_session* session);
  // Sets gradients to what the pool holds, for parameters that are in use.
  void GiveOut(const std::vector<uint8_t>& used);
  void ShowScaled();
  void CheckNotBroken() const;
  // The current stream of the pool's device on this thread; none on the CPU.
  std::optional<c10::Stream> CurrentStream() const;
  // Makes the current stream the session's.
  void SetStream();
  // Orders what `after` is given from here on behind what `before` was given.
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
  float loss_scale_;             // The scale in force in the session,
  float shown_scale_ = 1.0F;     // and the scale that gradients come out with.
  float step_scale_ = 1.0F;      // That of the open or last step.
  bool restored_scale_ = false;  // The session has that of a restored state.
  std::optional<c10::Stream> stream_;  // The session's, with a GPU.
  std::mutex begin_;
  std::atomic<bool> open_{false};  // A backward pass that ends a step runs.
  std::vector<uint8_t> marked_;    // By parameter: handed over in this step.
  std::vector<uint8_t> taken_;     // By parameter: Take() has just taken it.
  // By parameter: a rank has used it in some step, so that gradients of it may
  // be kept back.
  std::vector<uint8_t> ever_used_;
  std::string broken_;  // Why no more steps can be taken.
  uint64_t steps_ = 0;  // Taken by this object.
  gf_step_stats stats_{};
};

}  // namespace gft
