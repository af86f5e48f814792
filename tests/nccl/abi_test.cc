// Compares gradientflow/nccl/abi.h and nccl_api.h with the installed nccl.h,
// and asks the installed library for its version, which needs no device.
#include "gradientflow/nccl/abi.h"

#include <gtest/gtest.h>

#if __has_include(<nccl.h>)
#include <nccl.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>

#include "gradientflow/nccl/nccl_api.h"

namespace gradientflow {
namespace {

#define GF_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
GF_SAME_VALUE(nccl::ReturnCode::kSuccess, ncclSuccess);
GF_SAME_VALUE(nccl::ReturnCode::kUnhandledCudaError, ncclUnhandledCudaError);
GF_SAME_VALUE(nccl::ReturnCode::kSystemError, ncclSystemError);
GF_SAME_VALUE(nccl::ReturnCode::kInternalError, ncclInternalError);
GF_SAME_VALUE(nccl::ReturnCode::kInvalidArgument, ncclInvalidArgument);
GF_SAME_VALUE(nccl::ReturnCode::kInvalidUsage, ncclInvalidUsage);
GF_SAME_VALUE(nccl::ReturnCode::kRemoteError, ncclRemoteError);
GF_SAME_VALUE(nccl::ReturnCode::kInProgress, ncclInProgress);
GF_SAME_VALUE(nccl::RedOp::kSum, ncclSum);
GF_SAME_VALUE(nccl::RedOp::kProd, ncclProd);
GF_SAME_VALUE(nccl::RedOp::kMax, ncclMax);
GF_SAME_VALUE(nccl::RedOp::kMin, ncclMin);
GF_SAME_VALUE(nccl::RedOp::kAvg, ncclAvg);
GF_SAME_VALUE(nccl::DataType::kInt8, ncclInt8);
GF_SAME_VALUE(nccl::DataType::kUint8, ncclUint8);
GF_SAME_VALUE(nccl::DataType::kInt32, ncclInt32);
GF_SAME_VALUE(nccl::DataType::kInt64, ncclInt64);
GF_SAME_VALUE(nccl::DataType::kFloat16, ncclFloat16);
GF_SAME_VALUE(nccl::DataType::kFloat32, ncclFloat32);
GF_SAME_VALUE(nccl::DataType::kFloat64, ncclFloat64);
GF_SAME_VALUE(nccl::DataType::kBfloat16, ncclBfloat16);
GF_SAME_VALUE(nccl::ScalarResidence::kDevice, ncclScalarDevice);
GF_SAME_VALUE(nccl::ScalarResidence::kHostImmediate, ncclScalarHostImmediate);
GF_SAME_VALUE(nccl::kUndefined, NCCL_CONFIG_UNDEF_INT);

static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) &&
              alignof(nccl::UniqueId) == alignof(ncclUniqueId));

// The installed config must begin with the fields of ours.
#define GF_SAME_PLACE(ours, theirs)                          \
  static_assert(offsetof(nccl::Config, ours) ==              \
                    offsetof(ncclConfig_t, theirs) &&        \
                std::is_same_v<decltype(nccl::Config::ours), \
                               decltype(ncclConfig_t::theirs)>)
GF_SAME_PLACE(size, size);
GF_SAME_PLACE(magic, magic);
GF_SAME_PLACE(version, version);
GF_SAME_PLACE(blocking, blocking);
GF_SAME_PLACE(cga_cluster_size, cgaClusterSize);
GF_SAME_PLACE(min_ctas, minCTAs);
GF_SAME_PLACE(max_ctas, maxCTAs);
GF_SAME_PLACE(net_name, netName);
GF_SAME_PLACE(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 25, 0)
GF_SAME_PLACE(traffic_class, trafficClass);
#endif
static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t));

// Which of our types may stand for which of theirs.
template <typename T>
struct Ours {
  using Type = T;
};
template <>
struct Ours<ncclComm_t> {
  using Type = nccl::Comm;
};
template <>
struct Ours<ncclComm_t*> {
  using Type = nccl::Comm*;
};
template <>
struct Ours<ncclWindow_t> {
  using Type = nccl::Window;
};
template <>
struct Ours<ncclWindow_t*> {
  using Type = nccl::Window*;
};
template <>
struct Ours<const ncclUniqueId*> {
  using Type = const nccl::UniqueId*;
};
template <>
struct Ours<ncclUniqueId> {
  using Type = nccl::UniqueId;
};
template <>
struct Ours<ncclUniqueId*> {
  using Type = nccl::UniqueId*;
};
template <>
struct Ours<ncclConfig_t*> {
  using Type = nccl::Config*;
};
template <>
struct Ours<ncclResult_t> {
  using Type = nccl::ReturnCode;
};
template <>
struct Ours<ncclResult_t*> {
  using Type = nccl::ReturnCode*;
};
template <>
struct Ours<ncclDataType_t> {
  using Type = nccl::DataType;
};
template <>
struct Ours<ncclRedOp_t> {
  using Type = nccl::RedOp;
};
template <>
struct Ours<ncclRedOp_t*> {
  using Type = nccl::RedOp*;
};
template <>
struct Ours<ncclScalarResidence_t> {
  using Type = nccl::ScalarResidence;
};
template <>
struct Ours<cudaStream_t> {
  using Type = void*;
};
template <typename R, typename... Args>
struct Ours<R (*)(Args...)> {
  using Type = typename Ours<R>::Type (*)(
      typename Ours<std::remove_cv_t<Args>>::Type...);
};

#define GF_SAME_FUNCTION(ours, theirs)                  \
  static_assert(std::is_same_v<decltype(NcclApi::ours), \
                               Ours<decltype(&(theirs))>::Type>)
GF_SAME_FUNCTION(get_version, ncclGetVersion);
GF_SAME_FUNCTION(get_unique_id, ncclGetUniqueId);
GF_SAME_FUNCTION(comm_init_rank_config, ncclCommInitRankConfig);
GF_SAME_FUNCTION(comm_finalize, ncclCommFinalize);
GF_SAME_FUNCTION(comm_destroy, ncclCommDestroy);
GF_SAME_FUNCTION(comm_abort, ncclCommAbort);
GF_SAME_FUNCTION(comm_get_async_error, ncclCommGetAsyncError);
GF_SAME_FUNCTION(comm_cu_device, ncclCommCuDevice);
GF_SAME_FUNCTION(get_error_string, ncclGetErrorString);
GF_SAME_FUNCTION(get_last_error, ncclGetLastError);
GF_SAME_FUNCTION(red_op_create_pre_mul_sum, ncclRedOpCreatePreMulSum);
GF_SAME_FUNCTION(red_op_destroy, ncclRedOpDestroy);
GF_SAME_FUNCTION(all_reduce, ncclAllReduce);
GF_SAME_FUNCTION(broadcast, ncclBroadcast);
GF_SAME_FUNCTION(reduce, ncclReduce);
GF_SAME_FUNCTION(all_gather, ncclAllGather);
GF_SAME_FUNCTION(reduce_scatter, ncclReduceScatter);
GF_SAME_FUNCTION(send, ncclSend);
GF_SAME_FUNCTION(recv, ncclRecv);
GF_SAME_FUNCTION(group_start, ncclGroupStart);
GF_SAME_FUNCTION(group_end, ncclGroupEnd);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
GF_SAME_FUNCTION(comm_register, ncclCommRegister);
GF_SAME_FUNCTION(comm_deregister, ncclCommDeregister);
#endif

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
GF_SAME_FUNCTION(mem_alloc, ncclMemAlloc);
GF_SAME_FUNCTION(mem_free, ncclMemFree);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
GF_SAME_FUNCTION(comm_window_register, ncclCommWindowRegister);
GF_SAME_FUNCTION(comm_window_deregister, ncclCommWindowDeregister);
GF_SAME_VALUE(nccl::kWindowSymmetric, NCCL_WIN_COLL_SYMMETRIC);
GF_SAME_FUNCTION(comm_shrink, ncclCommShrink);
GF_SAME_VALUE(nccl::ShrinkFlag::kDefault, NCCL_SHRINK_DEFAULT);
GF_SAME_VALUE(nccl::ShrinkFlag::kAbort, NCCL_SHRINK_ABORT);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7)
GF_SAME_FUNCTION(comm_revoke, ncclCommRevoke);
GF_SAME_VALUE(nccl::kRevokeDefault, NCCL_REVOKE_DEFAULT);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
GF_SAME_FUNCTION(comm_grow, ncclCommGrow);
GF_SAME_FUNCTION(comm_get_unique_id, ncclCommGetUniqueId);
#endif

TEST(NcclAbi, ConfigBeginsLikeTheHeadersOwn) {
  const nccl::Config ours;
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.version, theirs.version);
  const std::size_t begin = offsetof(nccl::Config, blocking);
  EXPECT_EQ(std::memcmp(reinterpret_cast<const char*>(&ours) + begin,
                        reinterpret_cast<const char*>(&theirs) + begin,
                        sizeof(ours) - begin),
            0);
}

TEST(NcclAbi, InstalledLibraryLoads) {
  const Result<std::shared_ptr<const NcclApi>> api = LoadNccl("");
  if (!api.ok()) GTEST_SKIP() << api.status().ToString();
  EXPECT_GE(api.value()->version, 21800);
  EXPECT_STREQ(api.value()->get_error_string(nccl::ReturnCode::kSuccess),
               "no error");
  std::printf("%s is %s, the header is %s\n", api.value()->path.c_str(),
              NcclVersionText(api.value()->version).c_str(),
              NcclVersionText(NCCL_VERSION_CODE).c_str());
}

}  // namespace
}  // namespace gradientflow

#else

TEST(NcclAbi, IsCompared) { GTEST_SKIP() << "there is no nccl.h here"; }

#endif
