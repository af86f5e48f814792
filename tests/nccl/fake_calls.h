#pragma once

#include <memory>
#include <mutex>

#include "gradientflow/nccl/abi.h"
#include "tests/nccl/fake_world.h"

// What the functions of libfake_nccl.so share. State().mutex guards everything.
namespace gradientflow::testing {

using Code = nccl::ReturnCode;
using Lock = std::unique_lock<std::mutex>;

// Ends the process if the communicator has been destroyed.
FakeComm* From(nccl::Comm comm);
// Adds a communicator to `world`, which has room for its rank.
FakeComm* NewComm(const std::shared_ptr<FakeWorld>& world, int rank);
// Whether NCCL would refuse a call at this moment.
bool Busy(const FakeComm& comm);
// Counts a call that NCCL does not allow.
Code Misuse();
// Returns whether a test wants this call to fail, for the calling thread's
// rank.
bool FailsNow();
// Returns whether it wants this call never to be done; `comm` is then busy
// until it is aborted.
bool HangsNow(FakeComm* comm);
// The calling thread is that rank from now on.
void BecomeRank(int rank);
// Lets `part` reach `stream` from another thread, once the caller has asked
// often enough.
void LaunchLater(FakeComm* comm, std::unique_ptr<FakePart> part, void* stream);
// The caller has asked for the state of `comm`.
void Polled(FakeComm* comm);
// Nothing of `comm` reaches a stream any more.
void DropLaunches(FakeComm* comm);

}  // namespace gradientflow::testing
