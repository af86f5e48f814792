#include "gradientflow/nccl/nccl_comm.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gradientflow/base/mutex.h"
#include "gradientflow/base/str_cat.h"
#include "kernels/kernels.h"

namespace gradientflow {
namespace {

using nccl::ReturnCode;

// A loss scale changes now and then, and a step uses one factor or two.
constexpr std::size_t kOperatorsKept = 8;

StatusCode CodeFor(ReturnCode code) {
  switch (code) {
    case ReturnCode::kSystemError:
    case ReturnCode::kRemoteError:
      return StatusCode::kUnavailable;
    case ReturnCode::kInvalidArgument:
      return StatusCode::kInvalidArgument;
    case ReturnCode::kInvalidUsage:
      return StatusCode::kFailedPrecondition;
    default:
      return StatusCode::kInternal;
  }
}

// Where NCCL may still write the handles of children whose parent is gone, too.
void KeepForEver(std::shared_ptr<nccl::Comm> handle) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<nccl::Comm>>;
  const MutexLock lock(mutex);
  kept->push_back(std::move(handle));
}

}  // namespace

nccl::DataType NcclType(DType type) {
  return static_cast<nccl::DataType>(TraitsOf(type).nccl);
}

// An abort that hangs is left to its thread.
NcclComm::~NcclComm() {
  for (std::shared_ptr<nccl::Comm>& child : children_) {
    KeepForEver(std::move(child));
  }
  if (!aborter_.joinable()) return;
  if (abort_done()) {
    aborter_.join();
  } else {
    aborter_.detach();
  }
}

// kInProgress is no error: Ready() tells when the call has finished.
Status NcclComm::Check(const char* function, ReturnCode code) const {
  if (code == ReturnCode::kSuccess || code == ReturnCode::kInProgress) {
    return Status();
  }
  const char* name = api_->get_error_string(code);
  const char* detail =
      comm() != nullptr ? api_->get_last_error(comm()) : nullptr;
  const bool more = detail != nullptr && *detail != '\0';
  return Status(CodeFor(code),
                StrCat(function, " on rank ", rank_, " of ", size_, ": ",
                       name != nullptr ? name : "unknown error", " (code ",
                       static_cast<int>(code), more ? ", " : "",
                       more ? detail : "", ")"));
}

Status NcclComm::Begin(const nccl::UniqueId& id) {
  nccl::Config config;
  config.blocking = 0;
  return Check(
      "ncclCommInitRankConfig",
      api_->comm_init_rank_config(handle_.get(), size_, id, rank_, &config));
}

Result<bool> NcclComm::Ready() {
  // NCCL writes the handle of a child on a thread of its own.
  if (std::atomic_ref(*handle_).load(std::memory_order_acquire) == nullptr) {
    return false;
  }
  ReturnCode state = ReturnCode::kSuccess;
  const ReturnCode code = api_->comm_get_async_error(comm(), &state);
  GF_RETURN_IF_ERROR(Check("ncclCommGetAsyncError", code));
  GF_RETURN_IF_ERROR(Check("NCCL", state));
  ForgetChildren();
  return state == ReturnCode::kSuccess;
}

// A child that was dropped before it was there is aborted when it is: nothing
// was ever in flight on it.
void NcclComm::ForgetChildren() {
  std::erase_if(children_, [this](const auto& child) {
    const nccl::Comm made =
        std::atomic_ref(*child).load(std::memory_order_acquire);
    if (made == nullptr) return false;
    if (child.use_count() == 1) static_cast<void>(api_->comm_abort(made));
    return true;
  });
}

Result<nccl::RedOp> NcclComm::PreMulSum(DType type, double factor) {
  for (const Operator& known : operators_) {
    if (known.type == type && known.factor == factor) return known.op;
  }
  if (operators_.size() == kOperatorsKept) {
    // No call that used the operator is being issued: NCCL has copied the
    // arguments of those in flight.
    GF_RETURN_IF_ERROR(
        Check("ncclRedOpDestroy",
              api_->red_op_destroy(operators_.front().op, comm())));
    operators_.erase(operators_.begin());
  }
  float narrow = static_cast<float>(factor);
  void* scalar = &narrow;
  std::uint16_t half = 0;
  if (type == DType::kFloat64) {
    scalar = &factor;
  } else if (type != DType::kFloat32) {
    kernels::CpuKernels().convert(
        {&narrow, DType::kFloat32, &half, type, nullptr, 1, 1.0F, nullptr},
        nullptr);
    scalar = &half;
  }
  Operator made{type, factor, nccl::RedOp::kSum};
  GF_RETURN_IF_ERROR(Check("ncclRedOpCreatePreMulSum",
                           api_->red_op_create_pre_mul_sum(
                               &made.op, scalar, NcclType(type),
                               nccl::ScalarResidence::kHostImmediate, comm())));
  operators_.push_back(made);
  return made.op;
}

Status NcclComm::Register(void* data, std::size_t bytes, void** handle) {
  *handle = nullptr;
  if (!can_register() || bytes == 0) return Status();
  return Check("ncclCommRegister",
               api_->comm_register(comm(), data, bytes, handle));
}

void NcclComm::Deregister(void* handle) {
  // An aborted or destroyed communicator has forgotten its registrations.
  if (handle == nullptr || comm() == nullptr) return;
  static_cast<void>(api_->comm_deregister(comm(), handle));
}

Status NcclComm::BeginWindow(void* data, std::size_t bytes,
                             nccl::Window* window) {
  *window = nullptr;
  return Check("ncclCommWindowRegister",
               api_->comm_window_register(comm(), data, bytes, window,
                                          nccl::kWindowSymmetric));
}

void NcclComm::EndWindow(nccl::Window window) {
  // As with Deregister().
  if (window == nullptr || comm() == nullptr) return;
  static_cast<void>(api_->comm_window_deregister(comm(), window));
}

Status NcclComm::Finalize() {
  if (revoked_) {
    return Status(StatusCode::kFailedPrecondition,
                  "ncclCommFinalize: the communicator is revoked");
  }
  for (const Operator& known : operators_) {
    static_cast<void>(api_->red_op_destroy(known.op, comm()));
  }
  operators_.clear();
  return Check("ncclCommFinalize", api_->comm_finalize(comm()));
}

void NcclComm::Destroy() {
  static_cast<void>(api_->comm_destroy(std::exchange(*handle_, nullptr)));
}

void NcclComm::Abort(std::function<void()> make_current) {
  if (comm() == nullptr) return;
  operators_.clear();
  abort_done_ = std::make_shared<std::atomic<bool>>(false);
  aborter_ = std::thread([api = api_, done = abort_done_,
                          comm = std::exchange(*handle_, nullptr),
                          make_current = std::move(make_current)] {
    make_current();
    static_cast<void>(api->comm_abort(comm));
    done->store(true);
  });
}

// ---- Communicators whose members change.

Status NcclComm::Lacks(const char* function, const char* version) const {
  return Status(
      StatusCode::kUnimplemented,
      StrCat(function, ": NCCL ", NcclVersionText(api_->version), " (",
             api_->path, ") has none, ", version, " and newer do"));
}

Status NcclComm::Revoke() {
  if (api_->comm_revoke == nullptr) return Lacks("ncclCommRevoke", "2.28.7");
  GF_RETURN_IF_ERROR(
      Check("ncclCommRevoke", api_->comm_revoke(comm(), nccl::kRevokeDefault)));
  operators_.clear();
  revoked_ = true;
  return Status();
}

Result<std::unique_ptr<NcclComm>> NcclComm::Shrink(
    const std::vector<int>& excluded, nccl::ShrinkFlag flag) {
  if (api_->comm_shrink == nullptr) return Lacks("ncclCommShrink", "2.27");
  std::vector<int> out = excluded;
  std::sort(out.begin(), out.end());
  const bool twice = std::adjacent_find(out.begin(), out.end()) != out.end();
  if (out.empty() || twice || out.front() < 0 || out.back() >= size_ ||
      std::binary_search(out.begin(), out.end(), rank_)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("ncclCommShrink on rank ", rank_, " of ", size_,
                         ": expected other ranks to leave out, each once"));
  }
  const auto before = std::lower_bound(out.begin(), out.end(), rank_);
  auto made = std::make_unique<NcclComm>(
      api_, rank_ - static_cast<int>(before - out.begin()),
      size_ - static_cast<int>(out.size()));
  // Without a config of its own a child is non-blocking as its parent is.
  GF_RETURN_IF_ERROR(Check(
      "ncclCommShrink",
      api_->comm_shrink(comm(), out.data(), static_cast<int>(out.size()),
                        made->handle_.get(), nullptr, static_cast<int>(flag))));
  children_.push_back(made->handle_);
  return made;
}

Result<nccl::UniqueId> NcclComm::GrowthId() {
  if (api_->comm_grow == nullptr) return Lacks("ncclCommGrow", "2.29");
  nccl::UniqueId id = {};
  GF_RETURN_IF_ERROR(
      Check("ncclCommGetUniqueId", api_->comm_get_unique_id(comm(), &id)));
  return id;
}

Result<std::unique_ptr<NcclComm>> NcclComm::Grow(int size,
                                                 const nccl::UniqueId* id) {
  if (api_->comm_grow == nullptr) return Lacks("ncclCommGrow", "2.29");
  if (size <= size_) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("ncclCommGrow on rank ", rank_, " of ", size_, " to ",
                         size, ": expected more ranks"));
  }
  auto made = std::make_unique<NcclComm>(api_, rank_, size);
  GF_RETURN_IF_ERROR(
      Check("ncclCommGrow", api_->comm_grow(comm(), size, id, /*rank=*/-1,
                                            made->handle_.get(), nullptr)));
  children_.push_back(made->handle_);
  return made;
}

Status NcclComm::BeginInGrowth(const nccl::UniqueId& id) {
  if (api_->comm_grow == nullptr) return Lacks("ncclCommGrow", "2.29");
  nccl::Config config;
  config.blocking = 0;
  return Check("ncclCommGrow", api_->comm_grow(nullptr, size_, &id, rank_,
                                               handle_.get(), &config));
}

}  // namespace gradientflow
