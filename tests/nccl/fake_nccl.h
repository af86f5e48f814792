#pragma once

#include <cstddef>

// How tests control libfake_nccl.so, an NCCL whose ranks are threads of one
// process and whose memory is the host's. Its functions are found by dlsym().
//
// It is as inconvenient as NCCL may be. Unless a communicator is a blocking one
// (whose calls are done when they return, and reach their stream before), calls
// that NCCL may take its time for
// are never done when they return: ncclCommGetAsyncError says ncclInProgress at
// least once after each, and work reaches its stream from another thread, as
// late as possible. Sums are rounded as by NCCL's classic kernels: each rank
// multiplies its elements by a factor of their type (1/n of an average is
// rounded to it), and every partial sum along a ring is rounded to the type.
// The ring begins at another rank in every block. Calls and groups that do not
// fit together between ranks end all their communicators.
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
  kBusyPolls,        // How often ncclCommGetAsyncError says ncclInProgress
                     // after each call, beyond the first time; 0.
  kCallError,        // Code that the next collective returns, once; 0.
  kAsyncError,       // Code that ncclCommGetAsyncError reports; 0.
  kTroubledRank,     // Whose calls the next two modes count; 0. A thread is the
                     // rank whose communicator it made last.
  kFailCall,         // The nth call from here on fails (1: the next), once; 0:
                     // none does. Not counted: those that ask or abort.
  kHangCall,         // The nth call from here on that NCCL may take its time
                     // for is never done, and its work reaches no stream.
  kNoWindows,        // 1: no rank reaches the memory of another.
  kFirstRank,        // Added to the rank at which the rings of sums begin; 0.
  kSlowOnes,         // So many more polls after each call of communicators that
                     // are slow: half of each rank's, others on every other
                     // rank; 0.
  kFirstTogether,    // 1: the first call of a communicator is done when all of
                     // its ranks have made it, as if they connected then.
  kOneAtATime,       // 1: a device works on one call at a time, in the order in
                     // which they reached its streams.
  kThreadPerCall,    // 1: work reaches its stream from a thread of its own for
                     // each call, as with NCCL, not from one for all of them.
};
inline constexpr int kFakeNcclModes = 19;
// What a call that kFailCall chose returns: ncclInternalError.
inline constexpr int kFakeNcclFailure = 3;

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
  kMismatches,  // Calls of ranks that did not fit together.
  kAllocated,   // By ncclMemAlloc.
  kFreed,       // Of those.
  kWindows,     // Begun.
  kWindowsEnded,
  kTroubles,  // Calls that failed or hung by kFailCall or kHangCall.
};
inline constexpr int kFakeNcclCounts = 17;

extern "C" {
// Resets all modes and counts, and ends everything that hangs.
using FakeNcclReset = void();
using FakeNcclSet = void(FakeNcclMode mode, int value);
using FakeNcclGet = int(FakeNcclCount count);
// `enqueue` makes a stream call fn(arg) after all work submitted before.
using FakeNcclEnqueue = void(void* stream, void (*fn)(void*), void* arg);
using FakeNcclSetEnqueue = void(FakeNcclEnqueue* enqueue);
// Memory of the device of that number, or null; and its end.
using FakeNcclAllocate = void*(int device, std::size_t bytes);
using FakeNcclFree = void(void* data);
using FakeNcclSetMemory = void(FakeNcclAllocate* allocate, FakeNcclFree* free);
// The calling thread's current device.
using FakeNcclCurrent = int();
using FakeNcclSetCurrent = void(FakeNcclCurrent* current);
}

inline constexpr char kFakeNcclReset[] = "fake_nccl_reset";
inline constexpr char kFakeNcclSet[] = "fake_nccl_set";
inline constexpr char kFakeNcclGet[] = "fake_nccl_get";
inline constexpr char kFakeNcclSetEnqueue[] = "fake_nccl_set_enqueue";
inline constexpr char kFakeNcclSetMemory[] = "fake_nccl_set_memory";
inline constexpr char kFakeNcclSetCurrent[] = "fake_nccl_set_current";

}  // namespace gradientflow::testing
