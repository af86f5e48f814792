#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/nccl/abi.h"
#include "tests/nccl/fake_nccl.h"

// The ranks behind libfake_nccl.so. One mutex guards everything, since
// correctness matters here and speed does not.
namespace gradientflow::testing {

enum class FakeKind : int {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
};

struct FakeMessage {
  bool send;
  void* data;
  std::size_t bytes;
  int peer;
};

// One rank's part in a collective.
struct FakeOp {
  FakeKind kind;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  nccl::DataType type = nccl::DataType::kInt8;
  nccl::RedOp op = nccl::RedOp::kSum;
  int root = 0;
  double factor = 1.0;  // For a pre-multiplying op.
};

// What reaches a stream at once: a call, or those of a group. Messages are sent
// and received together, while the collectives run in order.
struct FakePart {
  std::vector<FakeOp> ops;
  std::vector<FakeMessage> messages;
};

struct FakeWorld;
struct FakeComm;

// A part on its way to a stream, which may never reach it.
struct FakeSubmitted {
  FakeComm* comm;
  std::size_t number;  // Of its first collective, the same on all ranks.
  std::unique_ptr<FakePart> part;
};

struct FakeComm {
  std::shared_ptr<FakeWorld> world;
  int rank = 0;
  int device = 0;
  std::size_t begun = 0;  // Collectives that have reached the stream.
  struct Operator {
    nccl::DataType type;
    double factor;
    bool alive;
  };
  std::vector<Operator> operators;
  bool blocking = false;
  bool slow = false;  // See kSlowOnes.
  int polls_left = 0;
  std::unique_ptr<FakePart> pending;  // Reaches `stream` after polls_left.
  std::thread launcher;               // See kThreadPerCall.
  void* stream = nullptr;
  bool stuck = false;  // By kHangCall.
  bool revoked = false;
  // A child that begins, and where its handle goes when all its ranks have
  // come.
  FakeComm* child = nullptr;
  // A window that begins: published when all ranks have begun as many.
  std::size_t windows = 0;
  nccl::Window* window = nullptr;
  nccl::Comm* publish = nullptr;
  std::vector<std::unique_ptr<FakeSubmitted>> submitted;
  bool finalizing = false;
  bool aborted = false;
  bool gone = false;  // Aborted or destroyed.
  bool mismatch = false;
};

struct FakeWorld {
  struct Meeting {
    std::vector<FakeOp*> parts;
    int arrived = 0;
    int left = 0;
    bool done = false;
  };
  struct Sent {
    const void* data;
    std::size_t bytes;
    bool* taken;
  };
  std::size_t number = 0;  // How many there were before.
  std::vector<FakeComm*> comms;
  int joined = 0;
  // By the ranks that a shrinking leaves out; and the one that grows.
  std::map<std::vector<int>, std::shared_ptr<FakeWorld>> shrunk;
  std::shared_ptr<FakeWorld> grown;
  std::vector<std::size_t> windows;  // Bytes of each.
  std::map<std::size_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Sent>> mail;  // By (from, to).
};

struct FakeNcclState {
  static std::array<int, kFakeNcclModes> AtFirst() {
    std::array<int, kFakeNcclModes> modes = {};
    modes[static_cast<std::size_t>(FakeNcclMode::kVersion)] = 22809;
    modes[static_cast<std::size_t>(FakeNcclMode::kDevice)] = -1;
    return modes;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::array<int, kFakeNcclModes> modes = AtFirst();
  std::array<int, kFakeNcclCounts> counts{};
  FakeNcclEnqueue* enqueue = nullptr;
  FakeNcclCurrent* current = nullptr;
  FakeNcclAllocate* allocate = nullptr;
  FakeNcclFree* free = nullptr;
  std::map<std::uintptr_t, std::size_t> memory;  // Of ncclMemAlloc.
  int next_id = 1;
  std::deque<FakeComm*> to_launch;  // Their pending parts, by the launcher.
  // With kOneAtATime: what has reached the streams of a device, in order.
  std::map<int, std::deque<const FakeSubmitted*>> on_device;
  bool launcher = false;  // The thread that does so runs.
  std::map<std::string, std::shared_ptr<FakeWorld>> worlds;
  std::vector<std::unique_ptr<FakeComm>> comms;  // All that were ever made.

  int mode(FakeNcclMode which) const {
    return modes[static_cast<std::size_t>(which)];
  }
  void Count(FakeNcclCount which) { ++counts[static_cast<std::size_t>(which)]; }
};
FakeNcclState& State();

// Called on the stream's thread: meets the other ranks and does the work, or
// waits until `comm` is aborted.
void RunPart(const FakeSubmitted& submitted);

// What the ranks' elements [begin, begin + n) combine to.
std::vector<std::byte> Reduced(const std::vector<FakeOp*>& parts,
                               std::size_t begin, std::size_t n);
std::size_t SizeOf(nccl::DataType type);
// The value of a factor of that type.
double FactorAt(const void* scalar, nccl::DataType type);

}  // namespace gradientflow::testing
