// The calls of libfake_nccl.so by which communicators change their members.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/nccl/fake_calls.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/nccl/fake_world.h"

namespace gradientflow::testing {
namespace {

std::shared_ptr<FakeWorld> NewWorld(std::size_t size) {
  auto world = std::make_shared<FakeWorld>();
  world->comms.resize(size);
  return world;
}

// What is in flight ends, without its peers.
void EndAll(FakeComm* comm) {
  DropLaunches(comm);
  comm->aborted = true;
  State().changed.notify_all();
}

// The handle of the child appears once all its ranks have come.
Code BeginChild(FakeComm* parent, const std::shared_ptr<FakeWorld>& world,
                int rank, nccl::Comm* made) {
  if (world->comms[static_cast<std::size_t>(rank)] != nullptr) return Misuse();
  parent->child = NewComm(world, rank);
  parent->publish = made;
  parent->polls_left = 1;
  *made = nullptr;
  return Code::kInProgress;
}

}  // namespace
}  // namespace gradientflow::testing

using namespace gradientflow;           // NOLINT
using namespace gradientflow::testing;  // NOLINT

// NCCL's names and parameters. NOLINTBEGIN
extern "C" {

Code ncclCommRevoke(nccl::Comm comm, int flags) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (flags != nccl::kRevokeDefault || fake->finalizing) return Misuse();
  EndAll(fake);
  fake->revoked = true;
  fake->stuck = false;
  fake->mismatch = false;
  fake->polls_left = 2;
  return Code::kInProgress;
}

Code ncclCommShrink(nccl::Comm comm, int* excluded, int count, nccl::Comm* made,
                    nccl::Config* config, int flags) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (flags == static_cast<int>(nccl::ShrinkFlag::kAbort)) EndAll(fake);
  const bool idle = fake->pending == nullptr && fake->child == nullptr;
  if (!idle || config != nullptr || fake->finalizing) return Misuse();
  const std::vector<int> out(excluded, excluded + count);
  int before = 0;
  for (int rank : out) {
    if (rank == fake->rank) return Code::kInvalidArgument;
    before += rank < fake->rank;
  }
  std::shared_ptr<FakeWorld>& world = fake->world->shrunk[out];
  if (world == nullptr)
    world = NewWorld(fake->world->comms.size() - out.size());
  return BeginChild(fake, world, fake->rank - before, made);
}

Code ncclCommGetUniqueId(nccl::Comm comm, nccl::UniqueId* id) {
  FakeNcclState& state = State();
  const Lock lock(state.mutex);
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (Busy(*fake) || fake->world->grown != nullptr) return Misuse();
  *id = {};
  std::snprintf(id->bytes, sizeof(id->bytes), "grow %d", state.next_id++);
  fake->world->grown = NewWorld(0);
  state.worlds[std::string(id->bytes, sizeof(id->bytes))] = fake->world->grown;
  return Code::kSuccess;
}

Code ncclCommGrow(nccl::Comm comm, int size, const nccl::UniqueId* id, int rank,
                  nccl::Comm* made, nccl::Config* config) {
  FakeNcclState& state = State();
  const Lock lock(state.mutex);
  if (comm == nullptr) {
    if (id == nullptr || rank < 0 || rank >= size || config == nullptr) {
      return Code::kInvalidArgument;
    }
    BecomeRank(rank);
    if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
    const auto found =
        state.worlds.find(std::string(id->bytes, sizeof(id->bytes)));
    if (found == state.worlds.end()) return Code::kInvalidArgument;
    found->second->comms.resize(static_cast<std::size_t>(size));
    *made = reinterpret_cast<nccl::Comm>(NewComm(found->second, rank));
    return Code::kInProgress;
  }
  FakeComm* fake = From(comm);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  const auto least = static_cast<int>(fake->world->comms.size());
  if (Busy(*fake) || rank != -1 || size <= least) return Misuse();
  if (fake->world->grown == nullptr) return Misuse();  // Before the id is made.
  fake->world->grown->comms.resize(static_cast<std::size_t>(size));
  return BeginChild(fake, fake->world->grown, fake->rank, made);
}

}  // extern "C". NOLINTEND
