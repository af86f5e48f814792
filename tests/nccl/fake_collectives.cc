// The collectives of libfake_nccl.so.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tests/nccl/fake_calls.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/nccl/fake_world.h"

namespace gradientflow::testing {
namespace {

// Per thread: between ncclGroupStart and ncclGroupEnd.
struct Group {
  struct Batch {
    FakeComm* comm;
    void* stream;
    std::unique_ptr<FakePart> part;
  };
  int depth = 0;
  Code failed = Code::kSuccess;
  std::vector<Batch> batches;

  // The end of the group reports an error of a call in it.
  Code Fail(Code code) {
    if (depth > 0 && failed == Code::kSuccess) failed = code;
    return code;
  }
};
thread_local Group group;

Code Submit(Group::Batch batch) {
  FakeNcclState& state = State();
  if (Busy(*batch.comm) || batch.comm->revoked) return Misuse();
  int& planned = state.modes[static_cast<int>(FakeNcclMode::kCallError)];
  if (planned != 0) return static_cast<Code>(std::exchange(planned, 0));
  if (!HangsNow(batch.comm)) {
    LaunchLater(batch.comm, std::move(batch.part), batch.stream);
  }
  return batch.comm->blocking ? Code::kSuccess : Code::kInProgress;
}

// Returns the group's part for `comm`, or null if it is on another stream.
FakePart* PartOf(FakeComm* comm, void* stream) {
  for (Group::Batch& batch : group.batches) {
    if (batch.comm != comm) continue;
    return batch.stream == stream ? batch.part.get() : nullptr;
  }
  group.batches.push_back({comm, stream, std::make_unique<FakePart>()});
  return group.batches.back().part.get();
}

// Decodes `op`, which may be one of the communicator's own.
Code SetOperator(FakeOp* part, nccl::RedOp op, const FakeComm& comm) {
  part->op = op;
  const int own = static_cast<int>(op) - 5;
  if (own < 0) return Code::kSuccess;
  if (own >= static_cast<int>(comm.operators.size())) return Misuse();
  const FakeComm::Operator& found = comm.operators[own];
  if (!found.alive || found.type != part->type) return Misuse();
  part->op = nccl::RedOp::kSum;
  part->factor = found.factor;
  return Code::kSuccess;
}

Code SubmitCollective(FakeOp op, nccl::Comm handle, void* stream) {
  const Lock lock(State().mutex);
  FakeComm* comm = From(handle);
  if (FailsNow()) return group.Fail(static_cast<Code>(kFakeNcclFailure));
  if (Busy(*comm)) return group.Fail(Misuse());
  const Code code = SetOperator(&op, op.op, *comm);
  if (code != Code::kSuccess) return group.Fail(code);
  if (group.depth == 0) {
    Group::Batch batch{comm, stream, std::make_unique<FakePart>()};
    batch.part->ops.push_back(op);
    return Submit(std::move(batch));
  }
  FakePart* part = PartOf(comm, stream);
  if (part == nullptr) return group.Fail(Misuse());
  part->ops.push_back(op);
  return Code::kSuccess;
}

Code Queue(const FakeMessage& message, nccl::Comm handle, void* stream) {
  const Lock lock(State().mutex);
  FakeComm* comm = From(handle);
  if (FailsNow()) return group.Fail(static_cast<Code>(kFakeNcclFailure));
  // Alone it would be legal, and wait for its peer.
  if (group.depth == 0 || Busy(*comm)) return group.Fail(Misuse());
  if (message.peer < 0 ||
      message.peer >= static_cast<int>(comm->world->comms.size())) {
    return group.Fail(Code::kInvalidArgument);
  }
  FakePart* part = PartOf(comm, stream);
  if (part == nullptr) return group.Fail(Misuse());
  part->messages.push_back(message);
  return Code::kSuccess;
}

[[maybe_unused]] Code EndGroup() {
  std::vector<Group::Batch> batches = std::exchange(group.batches, {});
  const Code failed = std::exchange(group.failed, Code::kSuccess);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  if (failed != Code::kSuccess) return failed;
  Code code = Code::kSuccess;
  for (Group::Batch& batch : batches) {
    code = Submit(std::move(batch));
    if (code != Code::kInProgress && code != Code::kSuccess) return code;
  }
  return code;
}

}  // namespace
}  // namespace gradientflow::testing

using namespace gradientflow;           // NOLINT
using namespace gradientflow::testing;  // NOLINT

// NCCL's names and parameters. NOLINTBEGIN
extern "C" {

Code ncclAllReduce(const void* send, void* recv, std::size_t count,
                   nccl::DataType type, nccl::RedOp op, nccl::Comm comm,
                   void* stream) {
  return SubmitCollective({FakeKind::kAllReduce, send, recv, count, type, op},
                          comm, stream);
}

Code ncclBroadcast(const void* send, void* recv, std::size_t count,
                   nccl::DataType type, int root, nccl::Comm comm,
                   void* stream) {
  return SubmitCollective(
      {FakeKind::kBroadcast, send, recv, count, type, nccl::RedOp::kSum, root},
      comm, stream);
}

Code ncclReduce(const void* send, void* recv, std::size_t count,
                nccl::DataType type, nccl::RedOp op, int root, nccl::Comm comm,
                void* stream) {
  return SubmitCollective(
      {FakeKind::kReduce, send, recv, count, type, op, root}, comm, stream);
}

Code ncclAllGather(const void* send, void* recv, std::size_t count,
                   nccl::DataType type, nccl::Comm comm, void* stream) {
  return SubmitCollective({FakeKind::kAllGather, send, recv, count, type}, comm,
                          stream);
}

Code ncclReduceScatter(const void* send, void* recv, std::size_t count,
                       nccl::DataType type, nccl::RedOp op, nccl::Comm comm,
                       void* stream) {
  return SubmitCollective(
      {FakeKind::kReduceScatter, send, recv, count, type, op}, comm, stream);
}

Code ncclSend(const void* data, std::size_t count, nccl::DataType type,
              int peer, nccl::Comm comm, void* stream) {
  return Queue({true, const_cast<void*>(data), count * SizeOf(type), peer},
               comm, stream);
}

Code ncclRecv(void* data, std::size_t count, nccl::DataType type, int peer,
              nccl::Comm comm, void* stream) {
  return Queue({false, data, count * SizeOf(type), peer}, comm, stream);
}

Code ncclGroupStart() {
  const Lock lock(State().mutex);
  if (FailsNow()) return static_cast<Code>(kFakeNcclFailure);
  ++group.depth;
  return Code::kSuccess;
}

#ifndef FAKE_NCCL_WITHOUT_GROUP_END
Code ncclGroupEnd() {
  const Lock lock(State().mutex);
  if (group.depth == 0) return Misuse();
  return --group.depth > 0 ? Code::kSuccess : EndGroup();
}
#endif

}  // extern "C". NOLINTEND
