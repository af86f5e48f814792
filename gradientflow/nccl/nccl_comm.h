#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/status.h"
#include "gradientflow/nccl/abi.h"
#include "gradientflow/nccl/nccl_api.h"

namespace gradientflow {

nccl::DataType NcclType(DType type);

// One non-blocking communicator: no call of it waits for another rank or for
// the device. After a call that NCCL has not finished (ncclInProgress) no other
// may be made until Ready() says so.
// NOT thread-safe.
class NcclComm {
 public:
  // Of rank `rank` of `size`.
  NcclComm(std::shared_ptr<const NcclApi> api, int rank, int size)
      : api_(std::move(api)), rank_(rank), size_(size) {}
  // Gives the communicator up without a word if it is still there.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // Begins to meet the others of `id`, on the calling thread's current device.
  Status Begin(const nccl::UniqueId& id);
  // False while a call is under way. Errors are those of the communicator,
  // also such as no call has reported, and stay.
  Result<bool> Ready();
  // What `code`, returned by `function` ("ncclAllReduce"), means.
  Status Check(const char* function, nccl::ReturnCode code) const;

  // The operator "factor * x, summed" for `type` (float32 or float64). The last
  // few are kept. REQUIRES Ready().
  Result<nccl::RedOp> PreMulSum(DType type, double factor);

  // Whether Register() does anything.
  bool can_register() const { return api_->comm_register != nullptr; }
  // Tells NCCL of memory that calls will use; it stays until Deregister() or
  // the end of the communicator. *handle may be null: nothing to give back.
  // REQUIRES Ready().
  Status Register(void* data, std::size_t bytes, void** handle);
  void Deregister(void* handle);

  // In good order: once, then Ready() until it says yes, then Destroy().
  Status Finalize();
  void Destroy();

  // Ends what is under way, on this rank: on a thread of its own, since NCCL
  // waits there for what it ends; `make_current` is called there first. Nothing
  // but abort_done() from now on.
  void Abort(std::function<void()> make_current);
  bool abort_done() const {
    return abort_done_ == nullptr || abort_done_->load();
  }

  const NcclApi& api() const { return *api_; }
  nccl::Comm get() const { return comm_; }

 private:
  struct Operator {
    DType type;
    double factor;
    nccl::RedOp op;
  };

  const std::shared_ptr<const NcclApi> api_;
  const int rank_;
  const int size_;
  nccl::Comm comm_ = nullptr;
  std::vector<Operator> operators_;
  std::thread aborter_;
  std::shared_ptr<std::atomic<bool>> abort_done_;
};

}  // namespace gradientflow
