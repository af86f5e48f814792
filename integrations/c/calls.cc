#include "gradientflow/base/str_cat.h"
#include "integrations/c/handles.h"

using gradientflow::BufferView;
using gradientflow::CollectiveCall;
using gradientflow::CollectiveKind;
using gradientflow::DType;
using gradientflow::ReduceOp;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::Guard;
using gradientflow::c_api::Invalid;

namespace {

Result<CollectiveCall> MakeCall(const gf_session* session, CollectiveKind kind,
                                size_t count, int32_t dtype, int32_t op) {
  if (session == nullptr) {
    return Status(StatusCode::kInvalidArgument, "session is null");
  }
  if (dtype < GF_FLOAT32 || dtype > GF_UINT8) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("dtype ", dtype,
                         ": expected GF_FLOAT32 (0) to "
                         "GF_UINT8 (7)"));
  }
  if (op < GF_SUM || op > GF_BIT_XOR) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("op ", op, ": expected GF_SUM (0) to GF_BIT_XOR (7)"));
  }
  CollectiveCall call;
  call.kind = kind;
  call.count = count;
  call.dtype = call.wire = static_cast<DType>(dtype);
  call.op = static_cast<ReduceOp>(op);
  return call;
}

// Fills in the rest of a call with `finish`, and runs it.
template <typename Finish>
gf_status RunCall(gf_session* session, Result<CollectiveCall> made,
                  Finish finish) {
  return Guard([&]() -> Status {
    if (!made.ok()) return made.status();
    finish(&made.value());
    return session->session->Run(made.value());
  });
}

std::vector<std::size_t> Counts(const gf_session* session,
                                const size_t* counts) {
  if (counts == nullptr) return {};
  return std::vector<std::size_t>(counts, counts + session->session->size());
}

}  // namespace

gf_status gf_allreduce(gf_session* session, void* data, size_t count,
                       int32_t dtype, int32_t op) {
  return RunCall(
      session, MakeCall(session, CollectiveKind::kAllreduce, count, dtype, op),
      [&](CollectiveCall* call) { call->output = data; });
}

gf_status gf_broadcast(gf_session* session, void* data, size_t count,
                       int32_t dtype, int32_t root) {
  return RunCall(
      session,
      MakeCall(session, CollectiveKind::kBroadcast, count, dtype, GF_SUM),
      [&](CollectiveCall* call) {
        call->output = data;
        call->root = root;
      });
}

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_reduce(gf_session* session, const void* input, void* output,
                    size_t count, int32_t dtype, int32_t op, int32_t root) {
  return RunCall(session,
                 MakeCall(session, CollectiveKind::kReduce, count, dtype, op),
                 [&](CollectiveCall* call) {
                   call->input = input;
                   call->output = output;
                   call->root = root;
                 });
}

gf_status gf_allgather(gf_session* session, const void* input, void* output,
                       size_t count, int32_t dtype) {
  return RunCall(
      session,
      MakeCall(session, CollectiveKind::kAllgather, count, dtype, GF_SUM),
      [&](CollectiveCall* call) {
        call->input = input;
        call->output = output;
      });
}

gf_status gf_reduce_scatter(gf_session* session, const void* input,
                            void* output, size_t count, int32_t dtype,
                            int32_t op) {
  return RunCall(
      session,
      MakeCall(session, CollectiveKind::kReduceScatter, count, dtype, op),
      [&](CollectiveCall* call) {
        call->input = input;
        call->output = output;
      });
}

gf_status gf_all_to_all(gf_session* session, const void* input,
                        const size_t* send_counts, void* output,
                        const size_t* recv_counts, int32_t dtype) {
  return RunCall(session,
                 MakeCall(session, CollectiveKind::kAllToAll, 0, dtype, GF_SUM),
                 [&](CollectiveCall* call) {
                   call->input = input;
                   call->output = output;
                   call->send_counts = Counts(session, send_counts);
                   call->recv_counts = Counts(session, recv_counts);
                 });
}

gf_status gf_gather(gf_session* session, const void* input, void* output,
                    const size_t* counts, int32_t dtype, int32_t root) {
  return RunCall(session,
                 MakeCall(session, CollectiveKind::kGather, 0, dtype, GF_SUM),
                 [&](CollectiveCall* call) {
                   call->input = input;
                   call->output = output;
                   call->root = root;
                   call->recv_counts = Counts(session, counts);
                 });
}

gf_status gf_scatter(gf_session* session, const void* input, void* output,
                     const size_t* counts, int32_t dtype, int32_t root) {
  return RunCall(session,
                 MakeCall(session, CollectiveKind::kScatter, 0, dtype, GF_SUM),
                 [&](CollectiveCall* call) {
                   call->input = input;
                   call->output = output;
                   call->root = root;
                   call->send_counts = Counts(session, counts);
                 });
}

gf_status gf_barrier(gf_session* session) {
  return RunCall(
      session, MakeCall(session, CollectiveKind::kBarrier, 0, GF_INT8, GF_SUM),
      [](CollectiveCall*) {});
}

gf_status gf_send(gf_session* session, const void* data, size_t bytes,
                  int32_t peer, uint32_t tag) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&] { return session->session->Send(peer, tag, data, bytes); });
}

gf_status gf_recv(gf_session* session, void* data, size_t bytes, int32_t peer,
                  uint32_t tag) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&] { return session->session->Recv(peer, tag, data, bytes); });
}

gf_status gf_allreduce_start(gf_session* session, void* data, size_t count,
                             int32_t dtype, int32_t op, uint64_t* ticket) {
  if (ticket == nullptr) return Invalid("ticket is null");
  return Guard([&]() -> Status {
    Result<CollectiveCall> call =
        MakeCall(session, CollectiveKind::kAllreduce, count, dtype, op);
    if (!call.ok()) return call.status();
    call.value().output = data;
    Result<std::uint64_t> started = session->session->Start(call.value());
    if (!started.ok()) return started.status();
    *ticket = started.value();
    return Status();
  });
}

gf_status gf_wait(gf_session* session, uint64_t ticket) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&] { return session->session->Wait(ticket); });
}

gf_status gf_alloc_shared(gf_session* session, size_t bytes, void** out) {
  if (session == nullptr || out == nullptr) {
    return Invalid("gf_alloc_shared: an argument is null");
  }
  *out = nullptr;
  return Guard([&]() -> Status {
    Result<BufferView> view = session->session->AllocateShared(bytes);
    if (!view.ok()) return view.status();
    *out = view.value().data;
    return Status();
  });
}

gf_status gf_free_shared(gf_session* session, void* data) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(session->session->CheckProcess());
    session->session->FreeShared({static_cast<std::byte*>(data), 0, {}});
    return Status();
  });
}

gf_status gf_abort(gf_session* session, const char* why) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(session->session->CheckProcess());
    session->session->Abort(
        Status(StatusCode::kAborted, why == nullptr ? "no reason given" : why));
    return Status();
  });
}
