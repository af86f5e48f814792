// The memory and the windows of libfake_nccl.so.
#include <cstdint>
#include <vector>

#include "tests/nccl/fake_calls.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/nccl/fake_world.h"

using namespace gradientflow;           // NOLINT
using namespace gradientflow::testing;  // NOLINT

// NCCL's names and parameters. NOLINTBEGIN
extern "C" {

Code ncclMemAlloc(void** data, std::size_t bytes) {
  FakeNcclState& state = State();
  const Lock lock(state.mutex);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  *data = state.allocate(state.current(), bytes);
  if (*data == nullptr) return Code::kUnhandledCudaError;
  state.memory[reinterpret_cast<std::uintptr_t>(*data)] = bytes;
  state.Count(FakeNcclCount::kAllocated);
  return Code::kSuccess;
}

Code ncclMemFree(void* data) {
  FakeNcclState& state = State();
  const Lock lock(state.mutex);
  if (state.memory.erase(reinterpret_cast<std::uintptr_t>(data)) == 0) {
    return Misuse();
  }
  state.free(data);
  state.Count(FakeNcclCount::kFreed);
  return Code::kSuccess;
}

Code ncclCommWindowRegister(nccl::Comm comm, void* data, std::size_t bytes,
                            nccl::Window* window, int flags) {
  FakeNcclState& state = State();
  const Lock lock(state.mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  // Other memory cannot be mapped by the other ranks.
  const auto known = state.memory.find(reinterpret_cast<std::uintptr_t>(data));
  if (Busy(*fake) || flags != nccl::kWindowSymmetric ||
      known == state.memory.end() || known->second < bytes) {
    return Misuse();
  }
  if (state.mode(FakeNcclMode::kNoWindows) != 0) return Code::kSuccess;
  if (HangsNow(fake)) return Code::kInProgress;
  std::vector<std::size_t>& all = fake->world->windows;
  if (fake->windows == all.size()) all.push_back(bytes);
  if (all[fake->windows] != bytes) {
    state.Count(FakeNcclCount::kMismatches);
    for (FakeComm* each : fake->world->comms) each->mismatch = true;
  }
  ++fake->windows;
  fake->window = window;
  fake->polls_left = 1;
  state.Count(FakeNcclCount::kWindows);
  return Code::kInProgress;
}

Code ncclCommWindowDeregister(nccl::Comm comm, nccl::Window window) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  const auto number = reinterpret_cast<std::uintptr_t>(window);
  if (Busy(*fake) || number == 0 || number > fake->windows) return Misuse();
  State().Count(FakeNcclCount::kWindowsEnded);
  return Code::kSuccess;
}

}  // extern "C". NOLINTEND
