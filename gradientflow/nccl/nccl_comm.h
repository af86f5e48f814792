#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/device/device.h"
#include "gradientflow/nccl/abi.h"
#include "gradientflow/nccl/nccl_api.h"

namespace gradientflow {

nccl::DataType NcclType(DType type);

// One non-blocking communicator: none of its calls blocks on another rank or on
// the device. After a call that NCCL has not finished (ncclInProgress), no
// other call may be made until Ready() returns true.
// NOT thread-safe.
class NcclComm {
 public:
  // The communicator of rank `rank` of `size`.
  NcclComm(std::shared_ptr<const NcclApi> api, int rank, int size)
      : api_(std::move(api)), rank_(rank), size_(size) {}
  // Abandons the communicator if it still exists.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // Begins to connect to the other ranks with the same `id`, on the calling
  // thread's current device.
  Status Begin(const nccl::UniqueId& id);
  // Returns false while a call is unfinished, or as long as NCCL has not made
  // this child of another communicator. Errors are those of the
  // communicator, including those that no call has reported; they stay.
  Result<bool> Ready();
  // Turns the `code` that `function` ("ncclAllReduce") returned into a Status.
  Status Check(const char* function, nccl::ReturnCode code) const;

  // Returns the operator "factor * x, summed" for a floating-point `type`, to
  // which NCCL rounds the factor. Keeps the last few operators. REQUIRES
  // Ready().
  Result<nccl::RedOp> PreMulSum(DType type, double factor);

  // Returns whether Register() has an effect.
  bool can_register() const { return api_->comm_register != nullptr; }
  // Tells NCCL about memory that calls will use. The memory must stay until
  // Deregister() or the end of the communicator. *handle may be null: then
  // there is nothing to deregister. REQUIRES Ready().
  Status Register(void* data, std::size_t bytes, void** handle);
  void Deregister(void* handle);

  // Returns whether BeginWindow() has an effect.
  bool has_windows() const { return api_->comm_window_register != nullptr; }
  // Begins to make memory a symmetric window: NCCL's kernels then read and
  // write that of other ranks in place, and add in float32. All ranks call this
  // in the same order, with as many bytes of ncclMemAlloc(). *window is
  // written until Ready() returns true; it stays null where the ranks do not
  // reach each other's memory. REQUIRES has_windows() and Ready().
  Status BeginWindow(void* data, std::size_t bytes, nccl::Window* window);
  void EndWindow(nccl::Window window);

  // How to close in good order: Finalize() once, then Ready() until it returns
  // true, then Destroy().
  Status Finalize();
  void Destroy();

  // A communicator of another number of ranks, made from this one by all ranks
  // that will be in it. They connect as after Begin(): first this one's Ready()
  // must return true, then that of the result. This one stays, for Destroy() or
  // another child. A result that is dropped earlier is aborted by a Ready() of
  // this one, when it is there. kUnimplemented names the version of NCCL that
  // has the call.

  // Stops what is in flight on this rank, without its peers: one of them may be
  // gone. After Ready(), Shrink() and Destroy() may follow, but no Finalize().
  Status Revoke();
  // Leaves out the ranks in `excluded`; they do not call. The others keep their
  // order. `flag` says whether calls may still be in flight.
  Result<std::unique_ptr<NcclComm>> Shrink(const std::vector<int>& excluded,
                                           nccl::ShrinkFlag flag);
  // The id by which new ranks join in Grow(); good for one. To be made by one
  // rank, which gives it to its own Grow() and to the new ranks.
  Result<nccl::UniqueId> GrowthId();
  // Adds ranks up to `size`; those that are here keep their numbers. `id` is
  // null on all but the rank that made it. REQUIRES that no call is in flight.
  Result<std::unique_ptr<NcclComm>> Grow(int size, const nccl::UniqueId* id);
  // Begins as a new rank in the Grow() of others.
  Status BeginInGrowth(const nccl::UniqueId& id);

  // Aborts what is in flight on this rank. Runs on a thread of its own, because
  // NCCL blocks until everything has ended; that thread calls `make_current`
  // first. After this only abort_done() may be called.
  void Abort(std::function<void()> make_current);
  bool abort_done() const {
    return abort_done_ == nullptr || abort_done_->load();
  }

  const NcclApi& api() const { return *api_; }
  const std::shared_ptr<const NcclApi>& shared_api() const { return api_; }
  nccl::Comm get() const { return *handle_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  struct Operator {
    DType type;
    double factor;
    nccl::RedOp op;
  };

  nccl::Comm comm() const { return *handle_; }
  void ForgetChildren();
  Status Lacks(const char* function, const char* version) const;

  const std::shared_ptr<const NcclApi> api_;
  const int rank_;
  const int size_;
  // NCCL writes the handle of a child at some later time, even if the child has
  // been dropped, so the parent holds it, too, until it is there.
  const std::shared_ptr<nccl::Comm> handle_ =
      std::make_shared<nccl::Comm>(nullptr);
  std::vector<std::shared_ptr<nccl::Comm>> children_;
  bool revoked_ = false;
  std::vector<Operator> operators_;
  std::thread aborter_;
  std::shared_ptr<std::atomic<bool>> abort_done_;
};

}  // namespace gradientflow
