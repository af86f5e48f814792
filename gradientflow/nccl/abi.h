#pragma once

#include <climits>
#include <cstddef>

// The part of NCCL's binary interface that is used here, written down a second
// time so that no build needs NCCL. It has not changed within major version 2
// since 2.18; what came later says so. tests/nccl/abi_test.cc compares it with
// the installed nccl.h.
namespace gradientflow::nccl {

struct OpaqueComm;
using Comm = OpaqueComm*;  // ncclComm_t.

struct OpaqueWindow;
using Window = OpaqueWindow*;  // ncclWindow_t.

struct UniqueId {  // ncclUniqueId.
  char bytes[128];
};

enum class ReturnCode : int {  // ncclResult_t.
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclRedOp_t. ncclRedOpCreatePreMulSum() makes values above kAvg.
enum class RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

enum class DataType : int {  // ncclDataType_t.
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum class ScalarResidence : int { kDevice = 0, kHostImmediate = 1 };

enum class ShrinkFlag : int {  // For ncclCommShrink, 2.27.
  kDefault = 0,                // No call is in flight.
  kAbort = 1,                  // Calls in flight are aborted first.
};

// For ncclCommWindowRegister, 2.27.
inline constexpr int kWindowSymmetric = 1;

inline constexpr int kRevokeDefault = 0;  // For ncclCommRevoke, 2.28.7.

inline constexpr int kUndefined = INT_MIN;  // NCCL_CONFIG_UNDEF_INT.

// ncclConfig_t as of 2.18. Newer libraries read `size` bytes of it and use
// defaults for everything that was added after `version`. traffic_class is
// where 2.18 has padding.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xCAFEBEEF;
  unsigned version = 21800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
};
static_assert(sizeof(Config) == 48, "as in NCCL 2.18 on 64-bit machines");

}  // namespace gradientflow::nccl
