#include <algorithm>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "gradientflow/nccl/nccl_comm.h"

// The part of NcclComm for jobs whose members change.
namespace gradientflow {

Status NcclComm::Lacks(const char* function, const char* version) const {
  return Status(
      StatusCode::kUnimplemented,
      StrCat(function, ": NCCL ", NcclVersionText(api_->version), " (",
             api_->path, ") has none, ", version, " and newer do"));
}

Status NcclComm::Revoke() {
  if (api_->comm_revoke == nullptr) return Lacks("ncclCommRevoke", "2.28.7");
  GF_RETURN_IF_ERROR(
      Check("ncclCommRevoke", api_->comm_revoke(comm_, nccl::kRevokeDefault)));
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
  GF_RETURN_IF_ERROR(
      Check("ncclCommShrink",
            api_->comm_shrink(comm_, out.data(), static_cast<int>(out.size()),
                              &made->comm_, nullptr, static_cast<int>(flag))));
  return made;
}

Result<nccl::UniqueId> NcclComm::GrowthId() {
  if (api_->comm_grow == nullptr) return Lacks("ncclCommGrow", "2.29");
  nccl::UniqueId id = {};
  GF_RETURN_IF_ERROR(
      Check("ncclCommGetUniqueId", api_->comm_get_unique_id(comm_, &id)));
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
  GF_RETURN_IF_ERROR(Check(
      "ncclCommGrow",
      api_->comm_grow(comm_, size, id, /*rank=*/-1, &made->comm_, nullptr)));
  return made;
}

Status NcclComm::BeginInGrowth(const nccl::UniqueId& id) {
  if (api_->comm_grow == nullptr) return Lacks("ncclCommGrow", "2.29");
  nccl::Config config;
  config.blocking = 0;
  return Check("ncclCommGrow",
               api_->comm_grow(nullptr, size_, &id, rank_, &comm_, &config));
}

}  // namespace gradientflow
