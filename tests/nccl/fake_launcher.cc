// How the work of libfake_nccl.so's calls reaches its streams, and which calls
// fail or hang.
#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "tests/nccl/fake_calls.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/nccl/fake_world.h"

namespace gradientflow::testing {
namespace {

thread_local int rank_of_thread = 0;

// Counts a call of the troubled rank down. Returns whether it is the one.
bool IsTheOne(FakeNcclMode which) {
  FakeNcclState& state = State();
  if (state.mode(FakeNcclMode::kTroubledRank) != rank_of_thread) return false;
  int& left = state.modes[static_cast<std::size_t>(which)];
  if (left == 0 || --left > 0) return false;
  state.Count(FakeNcclCount::kTroubles);
  return true;
}

void RunSubmitted(void* arg) { RunPart(*static_cast<FakeSubmitted*>(arg)); }

void Flush(FakeComm* comm) {
  FakeNcclState& state = State();
  const std::size_t number = comm->begun;
  comm->begun += comm->pending->ops.size();
  state.Count(FakeNcclCount::kCollectives);
  comm->submitted.push_back(std::make_unique<FakeSubmitted>(
      FakeSubmitted{comm, number, std::move(comm->pending)}));
  if (state.mode(FakeNcclMode::kOneAtATime) != 0) {
    state.on_device[comm->device].push_back(comm->submitted.back().get());
  }
  state.enqueue(comm->stream, RunSubmitted, comm->submitted.back().get());
}

// One thread for all calls is as far from the caller as one for each.
void Launch() {
  FakeNcclState& state = State();
  Lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return !state.to_launch.empty(); });
    FakeComm* comm = state.to_launch.front();
    state.to_launch.pop_front();
    Flush(comm);
  }
}

// As NCCL does; the caller's polls join the thread.
void LaunchByThread(FakeComm* comm) {
  const Lock lock(State().mutex);
  if (comm->pending != nullptr) Flush(comm);
}

// A window is there once all ranks have begun it.
void PublishWindow(FakeComm* comm) {
  for (const FakeComm* each : comm->world->comms) {
    if (each->windows < comm->windows) return;
  }
  *std::exchange(comm->window, nullptr) =
      reinterpret_cast<nccl::Window>(comm->windows);
}

// Whether all ranks have made their first call.
bool AllHaveCalled(const FakeWorld& world) {
  for (const FakeComm* each : world.comms) {
    if (each->pending == nullptr && each->begun == 0) return false;
  }
  return true;
}

// Whether NCCL is not done with a call yet for another reason than time.
bool Connects(const FakeComm& comm) {
  return State().mode(FakeNcclMode::kFirstTogether) != 0 &&
         comm.pending != nullptr && comm.begun == 0 &&
         !AllHaveCalled(*comm.world);
}

}  // namespace

void BecomeRank(int rank) { rank_of_thread = rank; }

bool FailsNow() { return IsTheOne(FakeNcclMode::kFailCall); }

bool HangsNow(FakeComm* comm) {
  if (!IsTheOne(FakeNcclMode::kHangCall)) return false;
  comm->stuck = true;
  return true;
}

void LaunchLater(FakeComm* comm, std::unique_ptr<FakePart> part, void* stream) {
  comm->pending = std::move(part);
  comm->stream = stream;
  comm->polls_left = 1 + State().mode(FakeNcclMode::kBusyPolls);
  if (comm->slow) comm->polls_left += State().mode(FakeNcclMode::kSlowOnes);
  if (comm->blocking) {
    comm->polls_left = 0;
    Flush(comm);
  } else if (State().mode(FakeNcclMode::kThreadPerCall) != 0) {
    comm->launcher = std::thread(LaunchByThread, comm);
  }
}

void Polled(FakeComm* comm) {
  FakeNcclState& state = State();
  if (comm->child != nullptr && comm->polls_left == 0 &&
      comm->child->world->joined ==
          static_cast<int>(comm->child->world->comms.size())) {
    *comm->publish =
        reinterpret_cast<nccl::Comm>(std::exchange(comm->child, nullptr));
  }
  if (comm->window != nullptr && comm->polls_left == 0) PublishWindow(comm);
  if (comm->launcher.joinable() && comm->pending == nullptr) {
    comm->launcher.join();
  }
  if (comm->polls_left == 1 && Connects(*comm)) return;
  if (comm->polls_left == 0 || --comm->polls_left > 0) return;
  if (comm->pending == nullptr || comm->stuck) return;
  if (comm->launcher.joinable()) return;
  state.to_launch.push_back(comm);
  if (!std::exchange(state.launcher, true)) std::thread(Launch).detach();
  state.changed.notify_all();
}

void DropLaunches(FakeComm* comm) {
  std::erase(State().to_launch, comm);
  comm->pending.reset();
  if (comm->launcher.joinable()) comm->launcher.detach();
}

}  // namespace gradientflow::testing
