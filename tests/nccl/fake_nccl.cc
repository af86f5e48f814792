// Creation and destruction of libfake_nccl.so's communicators.
#include "tests/nccl/fake_nccl.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tests/nccl/fake_calls.h"
#include "tests/nccl/fake_world.h"

namespace gradientflow::testing {

FakeComm* From(nccl::Comm comm) {
  auto* fake = reinterpret_cast<FakeComm*>(comm);
  if (fake == nullptr || fake->gone) {
    std::fprintf(stderr, "libfake_nccl: use of a communicator that is gone\n");
    std::abort();
  }
  if (State().current() != fake->device) {
    State().Count(FakeNcclCount::kStrayCalls);
  }
  return fake;
}

FakeComm* NewComm(const std::shared_ptr<FakeWorld>& world, int rank) {
  FakeNcclState& state = State();
  auto made = std::make_unique<FakeComm>();
  made->world = world;
  made->rank = rank;
  made->device = state.current();
  made->slow = (static_cast<std::size_t>(rank) + world->number) % 2 == 0;
  world->comms[static_cast<std::size_t>(rank)] = made.get();
  ++world->joined;
  state.comms.push_back(std::move(made));
  state.Count(FakeNcclCount::kBegun);
  return state.comms.back().get();
}

// Whether NCCL would refuse a call at this moment.
bool Busy(const FakeComm& comm) {
  const FakeNcclState& state = State();
  return comm.polls_left > 0 || comm.child != nullptr ||
         comm.window != nullptr || comm.pending != nullptr || comm.stuck ||
         comm.world->joined < static_cast<int>(comm.world->comms.size()) ||
         state.mode(FakeNcclMode::kHangInit) != 0;
}

Code Misuse() {
  State().Count(FakeNcclCount::kMisuses);
  return Code::kInvalidUsage;
}

}  // namespace gradientflow::testing

using namespace gradientflow;           // NOLINT
using namespace gradientflow::testing;  // NOLINT

// NCCL's names and parameters. NOLINTBEGIN
extern "C" {

void fake_nccl_reset() {
  const Lock lock(State().mutex);
  State().modes = FakeNcclState::AtFirst();
  State().counts = {};
  State().changed.notify_all();
}

void fake_nccl_set(FakeNcclMode mode, int value) {
  const Lock lock(State().mutex);
  State().modes[static_cast<int>(mode)] = value;
  State().changed.notify_all();
}

int fake_nccl_get(FakeNcclCount count) {
  const Lock lock(State().mutex);
  return State().counts[static_cast<int>(count)];
}

void fake_nccl_set_enqueue(FakeNcclEnqueue* enqueue) {
  const Lock lock(State().mutex);
  State().enqueue = enqueue;
}

void fake_nccl_set_memory(FakeNcclAllocate* allocate, FakeNcclFree* free) {
  const Lock lock(State().mutex);
  State().allocate = allocate;
  State().free = free;
}

void fake_nccl_set_current(FakeNcclCurrent* current) {
  const Lock lock(State().mutex);
  State().current = current;
}

Code ncclGetVersion(int* version) {
  const Lock lock(State().mutex);
  *version = State().mode(FakeNcclMode::kVersion);
  return Code::kSuccess;
}

Code ncclGetUniqueId(nccl::UniqueId* id) {
  const Lock lock(State().mutex);
  std::memset(id->bytes, 'x', sizeof(id->bytes));
  std::snprintf(id->bytes, sizeof(id->bytes), "%d", State().next_id++);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  return static_cast<Code>(State().mode(FakeNcclMode::kIdError));
}

Code ncclCommInitRankConfig(nccl::Comm* comm, int size, nccl::UniqueId id,
                            int rank, nccl::Config* config) {
  FakeNcclState& state = State();
  Lock lock(state.mutex);
  *comm = nullptr;
  if (config->size != sizeof(nccl::Config) || config->magic != 0xCAFEBEEF ||
      config->version < 21800 || config->blocking < 0 || config->blocking > 1 ||
      rank < 0 || rank >= size) {
    return Code::kInvalidArgument;
  }
  BecomeRank(rank);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  auto& world = state.worlds[std::string(id.bytes, sizeof(id.bytes))];
  if (world == nullptr) {
    world = std::make_shared<FakeWorld>();
    world->number = state.worlds.size();
    world->comms.resize(static_cast<std::size_t>(size));
  }
  if (world->comms[static_cast<std::size_t>(rank)] != nullptr) return Misuse();
  FakeComm* fake = NewComm(world, rank);
  fake->blocking = config->blocking == 1;
  HangsNow(fake);
  *comm = reinterpret_cast<nccl::Comm>(fake);
  if (!fake->blocking) return Code::kInProgress;
  state.changed.notify_all();
  state.changed.wait(lock, [&] { return world->joined == size; });
  return Code::kSuccess;
}

Code ncclCommGetAsyncError(nccl::Comm comm, Code* error) {
  FakeNcclState& state = State();
  const Lock lock(state.mutex);
  FakeComm* fake = From(comm);
  *error = static_cast<Code>(state.mode(FakeNcclMode::kAsyncError));
  if (fake->mismatch) *error = Code::kInvalidUsage;
  if (*error != Code::kSuccess) return Code::kSuccess;
  Polled(fake);
  const bool hangs =
      fake->finalizing && state.mode(FakeNcclMode::kHangFinalize) != 0;
  if (hangs || Busy(*fake)) *error = Code::kInProgress;
  return Code::kSuccess;
}

Code ncclCommFinalize(nccl::Comm comm) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (Busy(*fake) || fake->revoked || std::exchange(fake->finalizing, true)) {
    return Misuse();
  }
  if (!HangsNow(fake)) fake->polls_left = 2;
  return Code::kInProgress;
}

Code ncclCommDestroy(nccl::Comm comm) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (Busy(*fake) || !(fake->finalizing || fake->revoked)) return Misuse();
  fake->gone = true;
  State().Count(FakeNcclCount::kDestroyed);
  return Code::kSuccess;
}

Code ncclCommAbort(nccl::Comm comm) {
  FakeNcclState& state = State();
  Lock lock(state.mutex);
  FakeComm* fake = From(comm);
  fake->gone = true;
  DropLaunches(fake);
  state.Count(FakeNcclCount::kAborted);
  state.changed.wait(lock,
                     [&] { return state.mode(FakeNcclMode::kHangAbort) == 0; });
  fake->aborted = true;
  state.changed.notify_all();
  return Code::kSuccess;
}

Code ncclCommCuDevice(nccl::Comm comm, int* device) {
  const Lock lock(State().mutex);
  const int said = State().mode(FakeNcclMode::kDevice);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  *device = said < 0 ? From(comm)->device : said;
  return Busy(*From(comm)) ? Misuse() : Code::kSuccess;
}

const char* ncclGetErrorString(Code code) {
  return code == Code::kRemoteError ? "fake remote error" : "fake error";
}

const char* ncclGetLastError(nccl::Comm comm) {
  const Lock lock(State().mutex);
  From(comm);
  return "last words";
}

#ifndef FAKE_NCCL_WITHOUT_REGISTER
Code ncclCommRegister(nccl::Comm comm, void* data, std::size_t bytes,
                      void** handle) {
  const Lock lock(State().mutex);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (Busy(*From(comm)) || data == nullptr || bytes == 0) return Misuse();
  State().Count(FakeNcclCount::kRegistered);
  *handle = data;
  return Code::kSuccess;
}

Code ncclCommDeregister(nccl::Comm comm, void* handle) {
  const Lock lock(State().mutex);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (Busy(*From(comm)) || handle == nullptr) return Misuse();
  State().Count(FakeNcclCount::kDeregistered);
  return Code::kSuccess;
}
#endif

Code ncclRedOpCreatePreMulSum(nccl::RedOp* op, void* scalar,
                              nccl::DataType type,
                              nccl::ScalarResidence residence,
                              nccl::Comm comm) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (Busy(*fake) || residence != nccl::ScalarResidence::kHostImmediate) {
    return Misuse();
  }
  *op = static_cast<nccl::RedOp>(5 + fake->operators.size());
  fake->operators.push_back({type, FactorAt(scalar, type), true});
  State().Count(FakeNcclCount::kOperators);
  return Code::kSuccess;
}

Code ncclRedOpDestroy(nccl::RedOp op, nccl::Comm comm) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  const std::size_t own = static_cast<std::size_t>(op) - 5;
  if (own >= fake->operators.size()) return Misuse();
  if (!std::exchange(fake->operators[own].alive, false)) return Misuse();
  State().Count(FakeNcclCount::kOperatorsDestroyed);
  return Code::kSuccess;
}

}  // extern "C". NOLINTEND
