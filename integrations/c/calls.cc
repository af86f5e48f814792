#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "gradientflow/base/dtype.h"
#include "gradientflow/base/str_cat.h"
#include "gradientflow/collectives/call_plan.h"
#include "integrations/c/handles.h"

// Collectives and messages. Every call of the C API becomes a gf_call;
// Translate() checks it and turns it into a CollectiveCall.
//
//   gf_comm_start()           -> Translate() -> Communicator::Start(): a ticket
//   gf_comm_allreduce(), ...  -> Translate() -> Communicator::Run(): blocks

using gradientflow::CallGroup;
using gradientflow::CollectiveCall;
using gradientflow::CollectiveKind;
using gradientflow::Communicator;
using gradientflow::DType;
using gradientflow::kAnyRank;
using gradientflow::ReduceOp;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::Guard;
using gradientflow::c_api::Invalid;
using gradientflow::c_api::WithDefaults;

namespace {

static_assert(GF_ALLREDUCE == static_cast<int>(CollectiveKind::kAllreduce) &&
              GF_BARRIER == static_cast<int>(CollectiveKind::kBarrier));
static_assert(GF_ANY_RANK == kAnyRank);

Communicator::Completion Told(gf_done done, void* user) {
  if (done == nullptr) return {};
  return [done, user](const Status& status) {
    done(user, static_cast<gf_status>(status.code()), status.message().c_str());
  };
}

// Returns OK, or "op 9: expected GF_SUM (0) to GF_BIT_XOR (7)".
Status InRange(const char* what, int32_t value, int32_t last,
               std::string_view expected) {
  if (value >= 0 && value <= last) return Status();
  return Status(StatusCode::kInvalidArgument,
                StrCat(what, " ", value, ": expected ", expected));
}

// Returns OK, or "dtype 9: expected 0 (float32) to 7 (uint8)".
Status CheckType(const char* what, int32_t dtype) {
  constexpr int32_t kLast = gradientflow::kernels::kDTypes - 1;
  return InRange(what, dtype, kLast,
                 StrCat("0 (", gf_dtype_name(0), ") to ", kLast, " (",
                        gf_dtype_name(kLast), ")"));
}

Result<CollectiveCall> TypesOf(const gf_call& given) {
  const int32_t wire = given.wire_dtype == -1 ? given.dtype : given.wire_dtype;
  GF_RETURN_IF_ERROR(InRange("kind", given.kind, GF_BARRIER,
                             "GF_ALLREDUCE (0) to GF_BARRIER (8)"));
  GF_RETURN_IF_ERROR(CheckType("dtype", given.dtype));
  GF_RETURN_IF_ERROR(CheckType("wire_dtype", wire));
  GF_RETURN_IF_ERROR(
      InRange("op", given.op, GF_BIT_XOR, "GF_SUM (0) to GF_BIT_XOR (7)"));
  CollectiveCall call;
  call.kind = static_cast<CollectiveKind>(given.kind);
  call.dtype = static_cast<DType>(given.dtype);
  call.wire = static_cast<DType>(wire);
  call.op = static_cast<ReduceOp>(given.op);
  return call;
}

Result<CollectiveCall> Translate(const gf_comm& comm, const gf_call& given) {
  Result<CollectiveCall> types = TypesOf(given);
  if (!types.ok()) return types;
  CollectiveCall& call = types.value();
  call.group = given.group;
  call.input = given.input;
  call.output = given.output;
  call.count = given.count;
  call.root = given.root;
  call.scale = given.scale;
  const bool counted =
      given.send_counts != nullptr || given.recv_counts != nullptr;
  call.equal_counts = call.kind == CollectiveKind::kAllToAll && !counted;
  if (!counted && !call.equal_counts) return types;
  const Result<std::size_t> size = comm.GroupSize(given.group);
  if (!size.ok()) return size.status();
  if (call.equal_counts) {
    call.send_counts.assign(size.value(), given.count);
    call.recv_counts = call.send_counts;
    return types;
  }
  const auto copy = [&size](const size_t* counts) {
    return counts == nullptr
               ? std::vector<std::size_t>()
               : std::vector<std::size_t>(counts, counts + size.value());
  };
  call.send_counts = copy(given.send_counts);
  call.recv_counts = copy(given.recv_counts);
  return types;
}

struct Memory {
  const void* input = nullptr;
  void* output = nullptr;
};

// A call of all ranks, with an operation where the kind has one.
gf_call CallOf(int32_t kind, const Memory& memory, size_t count, int32_t dtype,
               int32_t op = GF_SUM) {
  gf_call call;
  gf_call_init(&call);
  call.kind = kind;
  call.input = memory.input;
  call.output = memory.output;
  call.count = count;
  call.dtype = dtype;
  call.op = op;
  return call;
}

gf_status Run(gf_comm* comm, const gf_call& given) {
  if (comm == nullptr) return Invalid("comm is null");
  return Guard([&]() -> Status {
    // In a fork, a lock may be held for ever.
    GF_RETURN_IF_ERROR(comm->comm->CheckProcess());
    const Result<CollectiveCall> call = Translate(*comm, given);
    return call.ok() ? comm->comm->Run(call.value()) : call.status();
  });
}

}  // namespace

void gf_call_init(gf_call* call) {
  *call = gf_call{};
  call->struct_bytes = sizeof(*call);
  call->wire_dtype = -1;
  call->scale = 1.0F;
}

int32_t gf_supports(int32_t kind, int32_t dtype, int32_t wire_dtype,
                    int32_t op) {
  gf_call asked = CallOf(kind, {}, 0, dtype, op);
  asked.wire_dtype = wire_dtype;
  Result<CollectiveCall> call = TypesOf(asked);
  if (!call.ok()) return 0;
  call.value().send_counts = call.value().recv_counts = {0};
  return ValidateCall(call.value(), CallGroup()).ok() ? 1 : 0;
}

gf_status gf_comm_start(gf_comm* comm, const gf_call* call, gf_done done,
                        void* user, uint64_t* ticket) {
  if (comm == nullptr || call == nullptr || ticket == nullptr) {
    return Invalid("gf_comm_start: an argument is null");
  }
  if (call->struct_bytes < offsetof(gf_call, scale)) {
    return Invalid(StrCat("call: struct_bytes is ", call->struct_bytes,
                          "; use gf_call_init()"));
  }
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(comm->comm->CheckProcess());
    const Result<CollectiveCall> made =
        Translate(*comm, WithDefaults(*call, gf_call_init));
    if (!made.ok()) return made.status();
    Result<std::uint64_t> started =
        comm->comm->Start(made.value(), Told(done, user));
    if (started.ok()) *ticket = started.value();
    return started.status();
  });
}

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_comm_send_start(gf_comm* comm, uint32_t group, const void* data,
                             size_t bytes, int32_t peer, uint32_t tag,
                             gf_done done, void* user, uint64_t* ticket) {
  if (comm == nullptr || (data == nullptr && bytes > 0) || ticket == nullptr) {
    return Invalid("gf_comm_send_start: an argument is null");
  }
  return Guard([&] {
    Result<std::uint64_t> started = comm->comm->StartSend(
        {group, peer, tag}, data, bytes, Told(done, user));
    if (started.ok()) *ticket = started.value();
    return started.status();
  });
}

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_comm_recv_start(gf_comm* comm, uint32_t group, void* data,
                             size_t bytes, int32_t peer, uint32_t tag,
                             int32_t* source, gf_done done, void* user,
                             uint64_t* ticket) {
  if (comm == nullptr || (data == nullptr && bytes > 0) || ticket == nullptr) {
    return Invalid("gf_comm_recv_start: an argument is null");
  }
  return Guard([&] {
    Result<std::uint64_t> started = comm->comm->StartRecv(
        {group, peer, tag, source}, data, bytes, Told(done, user));
    if (started.ok()) *ticket = started.value();
    return started.status();
  });
}

gf_status gf_comm_wait(gf_comm* comm, uint64_t ticket, double seconds) {
  if (comm == nullptr) return Invalid("comm is null");
  return Guard([&] { return comm->comm->Wait(ticket, seconds); });
}

gf_status gf_comm_allreduce(gf_comm* comm, void* data, size_t count,
                            int32_t dtype, int32_t op) {
  return Run(comm, CallOf(GF_ALLREDUCE, {nullptr, data}, count, dtype, op));
}

gf_status gf_comm_broadcast(gf_comm* comm, void* data, size_t count,
                            int32_t dtype, int32_t root) {
  gf_call call = CallOf(GF_BROADCAST, {nullptr, data}, count, dtype);
  call.root = root;
  return Run(comm, call);
}

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_comm_reduce(gf_comm* comm, const void* input, void* output,
                         size_t count, int32_t dtype, int32_t op,
                         int32_t root) {
  gf_call call = CallOf(GF_REDUCE, {input, output}, count, dtype, op);
  call.root = root;
  return Run(comm, call);
}

gf_status gf_comm_allgather(gf_comm* comm, const void* input, void* output,
                            size_t count, int32_t dtype) {
  return Run(comm, CallOf(GF_ALLGATHER, {input, output}, count, dtype));
}

gf_status gf_comm_allgather_v(gf_comm* comm, const void* input, void* output,
                              const size_t* counts, int32_t dtype) {
  if (counts == nullptr) return Invalid("gf_comm_allgather_v: counts are null");
  gf_call call = CallOf(GF_ALLGATHER, {input, output}, 0, dtype);
  call.recv_counts = counts;
  return Run(comm, call);
}

gf_status gf_comm_reduce_scatter(gf_comm* comm, const void* input, void* output,
                                 size_t count, int32_t dtype, int32_t op) {
  return Run(comm,
             CallOf(GF_REDUCE_SCATTER, {input, output}, count, dtype, op));
}

gf_status gf_comm_all_to_all(gf_comm* comm, const void* input,
                             const size_t* send_counts, void* output,
                             const size_t* recv_counts, int32_t dtype) {
  if (send_counts == nullptr || recv_counts == nullptr) {
    return Invalid("gf_comm_all_to_all: counts are null");
  }
  gf_call call = CallOf(GF_ALL_TO_ALL, {input, output}, 0, dtype);
  call.send_counts = send_counts;
  call.recv_counts = recv_counts;
  return Run(comm, call);
}

gf_status gf_comm_all_to_all_equal(gf_comm* comm, const void* input,
                                   void* output, size_t count, int32_t dtype) {
  return Run(comm, CallOf(GF_ALL_TO_ALL, {input, output}, count, dtype));
}

gf_status gf_comm_gather(gf_comm* comm, const void* input, void* output,
                         const size_t* counts, int32_t dtype, int32_t root) {
  gf_call call = CallOf(GF_GATHER, {input, output}, 0, dtype);
  call.root = root;
  call.recv_counts = counts;
  return Run(comm, call);
}

gf_status gf_comm_scatter(gf_comm* comm, const void* input, void* output,
                          const size_t* counts, int32_t dtype, int32_t root) {
  gf_call call = CallOf(GF_SCATTER, {input, output}, 0, dtype);
  call.root = root;
  call.send_counts = counts;
  return Run(comm, call);
}

gf_status gf_comm_barrier(gf_comm* comm) {
  return Run(comm, CallOf(GF_BARRIER, {}, 0, GF_INT8));
}

gf_status gf_comm_send(gf_comm* comm, const void* data, size_t bytes,
                       int32_t peer, uint32_t tag) {
  if (comm == nullptr || (data == nullptr && bytes > 0)) {
    return Invalid("gf_comm_send: an argument is null");
  }
  return Guard([&] { return comm->comm->Send(peer, tag, data, bytes); });
}

gf_status gf_comm_recv(gf_comm* comm, void* data, size_t bytes, int32_t peer,
                       uint32_t tag) {
  if (comm == nullptr || (data == nullptr && bytes > 0)) {
    return Invalid("gf_comm_recv: an argument is null");
  }
  return Guard([&] { return comm->comm->Recv(peer, tag, data, bytes); });
}
