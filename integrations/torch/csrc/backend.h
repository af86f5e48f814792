#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "elements.h"
#include "group.h"
#include "work.h"

namespace gft {

// The longest time-out that both chrono's nanoseconds and the library can hold.
constexpr std::chrono::milliseconds kLongestTimeout =
    std::chrono::hours(24 * 365);

// torch.distributed's backend "gradientflow": the operations of one group, over
// a session that groups share. Results are the same as ProcessGroupGloo's. All
// ranks of a group call its operations in the same order.
//
// Tensors are on the CPU or on a GPU. GPU tensors are copied through host
// memory, and the call waits for the GPU's current stream.
//
// Methods without `override` exist in only some of the supported versions of
// torch.
class Backend final : public c10d::Backend {
 public:
  using Base = c10d::Backend;
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using Milliseconds = std::chrono::milliseconds;

  struct Options final : Base::Options {
    explicit Options(Milliseconds timeout);
    c10::intrusive_ptr<Base::Options> clone() const {
      return c10::make_intrusive<Options>(*this);
    }
  };
  using OptionsPtr = c10::intrusive_ptr<Options>;

  // Opens a session of its own, whose ranks are those of the group. The ranks
  // meet in `store`. Blocks, at most for the time-out of the options. Throws.
  static c10::intrusive_ptr<Backend> Open(const StorePtr& store, int rank,
                                          int size, const OptionsPtr& options);
  // Makes a group of some of this group's ranks, on the same session. All of
  // these ranks call it, with the same list; the first of them chooses the
  // group's number and tells the others through `store`. Throws.
  c10::intrusive_ptr<Backend> Subgroup(const StorePtr& store,
                                       const std::vector<int>& ranks,
                                       const OptionsPtr& options);
  ~Backend() override;

  const std::shared_ptr<Group>& group() const { return group_; }
  // Like allreduce() of one dense float tensor, converted to `wire` on its way.
  WorkPtr AllreduceVia(at::ScalarType wire, const at::Tensor& tensor,
                       const c10d::ReduceOp& op);

  // -- The group --
  const std::string getBackendName() const override { return "gradientflow"; }
  c10::intrusive_ptr<Base::Options> getBackendOptions() override {
    return options_;
  }
  void setTimeout(Milliseconds timeout) override;
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  void setSequenceNumberForGroup() override {}  // They count from 0.
  // Waits for the operations under way, and then refuses new ones. The session
  // closes with its last group.
  void shutdown() override;
  // Ends the job, on all ranks and in all groups of the session.
  void abort() override;
  c10d::ErrorType getError() override;
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<Base> split(
      const StorePtr& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<Base::Options>& options) override;
#ifdef GFT_HAS_HOOKS
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override {
    group_->hooks().AddAbort(id, std::move(hook));
  }
  void unregisterAbortHook(int64_t id) override {
    group_->hooks().RemoveAbort(id);
  }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    group_->hooks().AddCompletion(id, std::move(hook));
  }
  void unregisterCompletionHook(int64_t id) override {
    group_->hooks().RemoveCompletion(id);
  }
#endif
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // -- Reductions (backend_reduce.cc, backend_sparse.cc) --
  WorkPtr allreduce(Tensors& tensors,
                    const c10d::AllreduceOptions& opts) override;
  // The sum of sparse COO tensors.
  WorkPtr allreduce_sparse(Tensors& tensors,
                           const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr reduce_scatter(std::vector<at::Tensor>& outputs,
                         std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& opts) override;

  // -- Moves (backend_move.cc) --
  WorkPtr broadcast(Tensors& tensors,
                    const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  // backend_all_to_all.cc
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& opts) override;

  // -- Messages and barriers (backend_messages.cc, backend_monitored.cc) --
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts,
                        bool wait_all_ranks) override;

 private:
  // How profilers and error texts name an operation.
  struct Kind {
    c10d::OpType type;
    const char* title;
    std::string detail = {};  // "SUM", "root 2".
  };
  // Commits a work when it is destroyed, even if an exception ends its
  // construction.
  class Making {
   public:
    explicit Making(c10::intrusive_ptr<Work> work) : work_(std::move(work)) {}
    ~Making() {
      if (work_) work_->Commit();
    }
    Making(const Making&) = delete;
    Making& operator=(const Making&) = delete;
    Work* operator->() const { return work_.get(); }
    Work& operator*() const { return *work_; }
    WorkPtr Commit();

   private:
    c10::intrusive_ptr<Work> work_;
  };

  Backend(std::shared_ptr<Lease> lease, std::shared_ptr<Group> group,
          OptionsPtr options);

  // `timeout` is that of the call, or unset for the group's. `counts` says
  // whether the operation takes a number in the group's sequence.
  c10::intrusive_ptr<Work> Begin(const Kind& kind, Milliseconds timeout,
                                 Tensors inputs, Tensors results,
                                 bool counts = true);
  WorkPtr Add(WorkPtr work);
  WorkPtr SendBytes(const at::Tensor& bytes, int peer, uint32_t tag);
  WorkPtr ReceiveBytes(const at::Tensor& bytes, int peer, uint32_t tag);
  WorkPtr Receive(Tensors& tensors, const Kind& kind, int peer, int tag);
  void StartAllreduce(Work& work, const char* what, const at::Tensor& tensor,
                      const c10d::ReduceOp& op, int32_t wire = -1);
  // `output` counts on the root only; it may be `input`.
  void StartReduce(Work& work, const char* what, const at::Tensor& input,
                   const at::Tensor& output, const c10d::ReduceOp& op,
                   int root);
  void StartReduceScatter(Work& work, const char* what,
                          const at::Tensor& output, const void* input,
                          const c10d::ReduceOp& op);
  void StartBroadcast(Work& work, const at::Tensor& tensor, int root);
  void StartAllgather(Work& work, void* output, const at::Tensor& input);
  // Gathers into parts that may differ in size.
  void StartAllgather(Work& work, const Tensors& outputs,
                      const at::Tensor& input);
  void StartGather(Work& work, void* output, const at::Tensor& input, int root);

  const std::shared_ptr<Group> group_;
  const OptionsPtr options_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint32_t> monitored_{0};  // Barriers.
  std::atomic<bool> shut_down_{false};
  std::mutex mutex_;  // Guards what follows.
  std::shared_ptr<Lease> lease_;
  std::atomic<bool> coalescing_{false};
  std::vector<WorkPtr> coalesced_;
};

}  // namespace gft
