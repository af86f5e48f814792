// The collectives of libfake_nccl.so.
#include <cstddef>
#include <memory>
#include <utility>

#include "tests/nccl/fake_calls.h"
#include "tests/nccl/fake_nccl.h"
#include "tests/nccl/fake_world.h"

namespace gradientflow::testing {
namespace {

// Per thread: between ncclGroupStart and ncclGroupEnd.
struct Group {
  int depth = 0;
  FakeComm* comm = nullptr;
  void* stream = nullptr;
  std::unique_ptr<FakePart> messages;
};
thread_local Group group;

void RunSubmitted(void* arg) {
  const auto* submitted = static_cast<FakeSubmitted*>(arg);
  RunPart(submitted->comm, submitted->number, submitted->part.get());
}

Code Submit(nccl::Comm handle, std::unique_ptr<FakePart> part, void* stream) {
  FakeNcclState& state = State();
  FakeComm* comm = From(handle);
  if (Busy(*comm)) return Misuse();
  int& planned = state.modes[static_cast<int>(FakeNcclMode::kCallError)];
  if (planned != 0) return static_cast<Code>(std::exchange(planned, 0));
  comm->pending = std::move(part);
  comm->stream = stream;
  comm->polls_left = state.mode(FakeNcclMode::kBusyPolls);
  if (comm->polls_left > 0) return Code::kInProgress;
  Flush(comm);
  return Code::kSuccess;
}

// Decodes `op`, which may be one of the communicator's own.
Code SetOperator(FakePart* part, nccl::RedOp op, const FakeComm& comm) {
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

Code SubmitReduction(FakePart part, nccl::RedOp op, nccl::Comm comm,
                     void* stream) {
  const Lock lock(State().mutex);
  auto owned = std::make_unique<FakePart>(std::move(part));
  const Code code = SetOperator(owned.get(), op, *From(comm));
  if (code != Code::kSuccess) return code;
  return Submit(comm, std::move(owned), stream);
}

std::size_t BytesOf(nccl::DataType type) {
  switch (type) {
    case nccl::DataType::kInt8:
    case nccl::DataType::kUint8:
      return 1;
    case nccl::DataType::kFloat16:
    case nccl::DataType::kBfloat16:
      return 2;
    case nccl::DataType::kInt32:
    case nccl::DataType::kFloat32:
      return 4;
    default:
      return 8;
  }
}

Code Queue(const FakeMessage& message, nccl::Comm comm, void* stream) {
  const Lock lock(State().mutex);
  FakeComm* fake = From(comm);
  if (group.depth == 0 || Busy(*fake)) return Misuse();
  if (message.peer < 0 ||
      message.peer >= static_cast<int>(fake->world->comms.size())) {
    return Code::kInvalidArgument;
  }
  if (group.messages == nullptr) {
    group.messages = std::make_unique<FakePart>();
    group.messages->kind = FakeKind::kMessages;
    group.comm = fake;
    group.stream = stream;
  }
  group.messages->messages.push_back(message);
  return Code::kSuccess;
}

}  // namespace

// Submits the pending part to its stream.
void Flush(FakeComm* comm) {
  FakeNcclState& state = State();
  const bool meets = comm->pending->kind != FakeKind::kMessages;
  state.Count(FakeNcclCount::kCollectives);
  const std::size_t number = meets ? comm->begun++ : 0;
  comm->submitted.push_back(std::make_unique<FakeSubmitted>(
      FakeSubmitted{comm, number, std::move(comm->pending)}));
  state.enqueue(comm->stream, RunSubmitted, comm->submitted.back().get());
}

}  // namespace gradientflow::testing

using namespace gradientflow;           // NOLINT
using namespace gradientflow::testing;  // NOLINT

// NCCL's names and parameters. NOLINTBEGIN
extern "C" {

Code ncclAllReduce(const void* send, void* recv, std::size_t count,
                   nccl::DataType type, nccl::RedOp op, nccl::Comm comm,
                   void* stream) {
  return SubmitReduction(
      {FakeKind::kAllReduce, send, recv, count, type, op, 1.0, 0, {}}, op, comm,
      stream);
}

Code ncclBroadcast(const void* send, void* recv, std::size_t count,
                   nccl::DataType type, int root, nccl::Comm comm,
                   void* stream) {
  return SubmitReduction({FakeKind::kBroadcast,
                          send,
                          recv,
                          count,
                          type,
                          nccl::RedOp::kSum,
                          1.0,
                          root,
                          {}},
                         nccl::RedOp::kSum, comm, stream);
}

Code ncclReduce(const void* send, void* recv, std::size_t count,
                nccl::DataType type, nccl::RedOp op, int root, nccl::Comm comm,
                void* stream) {
  return SubmitReduction(
      {FakeKind::kReduce, send, recv, count, type, op, 1.0, root, {}}, op, comm,
      stream);
}

Code ncclAllGather(const void* send, void* recv, std::size_t count,
                   nccl::DataType type, nccl::Comm comm, void* stream) {
  return SubmitReduction({FakeKind::kAllGather,
                          send,
                          recv,
                          count,
                          type,
                          nccl::RedOp::kSum,
                          1.0,
                          0,
                          {}},
                         nccl::RedOp::kSum, comm, stream);
}

Code ncclReduceScatter(const void* send, void* recv, std::size_t count,
                       nccl::DataType type, nccl::RedOp op, nccl::Comm comm,
                       void* stream) {
  return SubmitReduction(
      {FakeKind::kReduceScatter, send, recv, count, type, op, 1.0, 0, {}}, op,
      comm, stream);
}

Code ncclSend(const void* data, std::size_t count, nccl::DataType type,
              int peer, nccl::Comm comm, void* stream) {
  return Queue({true, const_cast<void*>(data), count * BytesOf(type), peer},
               comm, stream);
}

Code ncclRecv(void* data, std::size_t count, nccl::DataType type, int peer,
              nccl::Comm comm, void* stream) {
  return Queue({false, data, count * BytesOf(type), peer}, comm, stream);
}

Code ncclGroupStart() {
  ++group.depth;
  return Code::kSuccess;
}

#ifndef FAKE_NCCL_WITHOUT_GROUP_END
Code ncclGroupEnd() {
  const Lock lock(State().mutex);
  if (group.depth == 0) return Misuse();
  if (--group.depth > 0 || group.messages == nullptr) return Code::kSuccess;
  return Submit(reinterpret_cast<nccl::Comm>(group.comm),
                std::move(group.messages), group.stream);
}
#endif

}  // extern "C". NOLINTEND
