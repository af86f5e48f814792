#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "backend_all_to_all.h"
#include "backend_messages.h"
#include "backend_monitored.h"
#include "backend_move.h"
#include "backend_reduce.h"
#include "backend_sparse.h"
#include "elements.h"
#include "group.h"
#include "operations.h"

namespace gft {

// torch.distributed's backend "gradientflow": the operations of one group, over
// a session that groups share. Results are the same as ProcessGroupGloo's. All
// ranks of a group call its operations in the same order.
//
// It says what each of torch's operations is; what they do is in the headers
// above, over Operations.
//
// Tensors are on the CPU or on a GPU. GPU tensors are copied through host
// memory, and the call waits for the GPU's current stream.
//
// Methods without `override` exist in only some of the supported versions of
// torch.
class Backend final : public c10d::Backend {
 public:
  using Base = c10d::Backend;
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
                       const c10d::ReduceOp& op) {
    return gft::AllreduceVia(operations_, wire, tensor, op);
  }

  // -- The group --
  const std::string getBackendName() const override { return "gradientflow"; }
  c10::intrusive_ptr<Base::Options> getBackendOptions() override {
    return options_;
  }
  void setTimeout(Milliseconds timeout) override;
  uint64_t getSequenceNumberForGroup() override {
    return operations_.sequence();
  }
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
  void startCoalescing() override { operations_.StartCoalescing(); }
  WorkPtr endCoalescing() override { return operations_.EndCoalescing(); }

  // -- Reductions --
  WorkPtr allreduce(Tensors& tensors,
                    const c10d::AllreduceOptions& opts) override {
    return Allreduce(operations_, tensors, opts);
  }
  WorkPtr allreduce_sparse(Tensors& tensors,
                           const c10d::AllreduceOptions& opts) override {
    return AllreduceSparse(operations_, tensors, opts);
  }
  WorkPtr allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return AllreduceCoalesced(operations_, tensors, opts);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return Reduce(operations_, tensors, opts);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override {
    return ReduceScatter(operations_, outputs, inputs, opts);
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::ReduceScatterOptions& opts) override {
    return ReduceScatterBase(operations_, output, input, opts);
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& opts) override {
    return ReduceScatterCoalesced(operations_, outputs, inputs, opts);
  }

  // -- Moves --
  WorkPtr broadcast(Tensors& tensors,
                    const c10d::BroadcastOptions& opts) override {
    return Broadcast(operations_, tensors, opts);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override {
    return Allgather(operations_, outputs, inputs, opts);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override {
    return AllgatherBase(operations_, output, input, opts);
  }
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override {
    return AllgatherCoalesced(operations_, outputs, inputs, opts);
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& opts) override {
    return AllgatherIntoCoalesced(operations_, outputs, inputs, opts);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override {
    return Gather(operations_, outputs, inputs, opts);
  }
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& opts) {
    return GatherInto(operations_, output, input, opts);
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override {
    return Scatter(operations_, outputs, inputs, opts);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override {
    return AllToAllSingle(operations_, output, input, output_splits,
                          input_splits, opts);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& opts) override {
    return AllToAll(operations_, outputs, inputs, opts);
  }

  // -- Messages and barriers --
  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return Send(operations_, tensors, peer, tag);
  }
  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return Receive(operations_, tensors, peer, tag);
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return ReceiveFromAny(operations_, tensors, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return Barrier(operations_, opts);
  }
  void monitoredBarrier(const c10d::BarrierOptions& opts,
                        bool wait_all_ranks) override {
    monitored_.Run(opts, wait_all_ranks);
  }

 private:
  Backend(std::shared_ptr<Lease> lease, std::shared_ptr<Group> group,
          OptionsPtr options);

  const std::shared_ptr<Group> group_;
  const OptionsPtr options_;
  Operations operations_;
  MonitoredBarrier monitored_{operations_};
  std::mutex mutex_;  // Guards what follows.
  std::shared_ptr<Lease> lease_;
};

}  // namespace gft
