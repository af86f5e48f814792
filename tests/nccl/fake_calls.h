#pragma once

#include <mutex>

#include "gradientflow/nccl/abi.h"
#include "tests/nccl/fake_world.h"

// What the functions of libfake_nccl.so share. State().mutex guards everything.
namespace gradientflow::testing {

using Code = nccl::ReturnCode;
using Lock = std::unique_lock<std::mutex>;

// Ends the process if the communicator has been destroyed.
FakeComm* From(nccl::Comm comm);
// Whether NCCL would refuse a call at this moment.
bool Busy(const FakeComm& comm);
// Counts a call that NCCL does not allow.
Code Misuse();
// Submits the pending part to its stream.
void Flush(FakeComm* comm);

}  // namespace gradientflow::testing
