#pragma once

// How tests control libfake_nccl.so, an NCCL whose ranks are threads of one
// process and whose memory is the host's. Its functions are found by dlsym().
namespace gradientflow::testing {

enum class FakeNcclMode : int {
  kVersion,          // The result of ncclGetVersion; 22809.
  kDevice,           // What ncclCommCuDevice says; -1: the device that was
                     // current when the communicator was made.
  kIdError,          // Code that ncclGetUniqueId returns; 0.
  kHangInit,         // 1: no communicator is ever ready.
  kHangCollectives,  // 1: what runs on a stream ends by ncclCommAbort alone.
  kHangAbort,        // 1: ncclCommAbort does not return.
  kHangFinalize,     // 1: ncclCommFinalize is never done.
  kBusyPolls,        // Times ncclCommGetAsyncError says ncclInProgress after
                     // each call; 0.
  kCallError,        // Code that the next collective returns, once; 0.
  kAsyncError,       // Code that ncclCommGetAsyncError reports; 0.
};
inline constexpr int kFakeNcclModes = 10;

enum class FakeNcclCount : int {
  kBegun,
  kDestroyed,
  kAborted,
  kCollectives,  // Reached their stream.
  kEnded,        // Those that have left their stream.
  kRegistered,
  kDeregistered,
  kOperators,           // Made.
  kOperatorsDestroyed,  // And not there any more.
  kMisuses,     // Calls that NCCL does not allow at that moment, or with such
                // arguments.
  kStrayCalls,  // With another device current than at the beginning.
};
inline constexpr int kFakeNcclCounts = 11;

extern "C" {
// Resets all modes and counts, and ends everything that hangs.
using FakeNcclReset = void();
using FakeNcclSet = void(FakeNcclMode mode, int value);
using FakeNcclGet = int(FakeNcclCount count);
// `enqueue` makes a stream call fn(arg) after all work submitted before.
using FakeNcclEnqueue = void(void* stream, void (*fn)(void*), void* arg);
using FakeNcclSetEnqueue = void(FakeNcclEnqueue* enqueue);
// The calling thread's current device.
using FakeNcclCurrent = int();
using FakeNcclSetCurrent = void(FakeNcclCurrent* current);
}

inline constexpr char kFakeNcclReset[] = "fake_nccl_reset";
inline constexpr char kFakeNcclSet[] = "fake_nccl_set";
inline constexpr char kFakeNcclGet[] = "fake_nccl_get";
inline constexpr char kFakeNcclSetEnqueue[] = "fake_nccl_set_enqueue";
inline constexpr char kFakeNcclSetCurrent[] = "fake_nccl_set_current";

}  // namespace gradientflow::testing
