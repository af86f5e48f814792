#include <cstddef>
#include <cstring>
#include <utility>

#include "gradientflow/base/str_cat.h"
#include "integrations/c/handles.h"

// Groups of ranks, messages, and calls that call back.

using gradientflow::CollectiveCall;
using gradientflow::CollectiveKind;
using gradientflow::DType;
using gradientflow::kAnyRank;
using gradientflow::ReduceOp;
using gradientflow::Result;
using gradientflow::Session;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StrCat;
using gradientflow::c_api::Guard;
using gradientflow::c_api::Invalid;

namespace {

static_assert(GF_ALLREDUCE == static_cast<int>(CollectiveKind::kAllreduce) &&
              GF_BARRIER == static_cast<int>(CollectiveKind::kBarrier));
static_assert(GF_ANY_RANK == kAnyRank);

Session::Completion Calls(gf_done done, void* user) {
  return [done, user](const Status& status) {
    done(user, static_cast<gf_status>(status.code()), status.message().c_str());
  };
}

// Structs of a caller built against an older header are shorter.
Result<gf_call> Complete(const gf_call* given) {
  if (given->struct_bytes < offsetof(gf_call, scale)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("call: struct_bytes is ", given->struct_bytes,
                         "; use gf_call_init()"));
  }
  gf_call full;
  gf_call_init(&full);
  std::memcpy(
      &full, given,
      given->struct_bytes < sizeof(full) ? given->struct_bytes : sizeof(full));
  return full;
}

bool IsDType(int32_t dtype) {
  return dtype >= GF_FLOAT32 && dtype < gradientflow::kernels::kDTypes;
}

Result<CollectiveCall> Translate(const gf_session& session,
                                 const gf_call& given) {
  if (given.kind < GF_ALLREDUCE || given.kind > GF_BARRIER) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("call: kind ", given.kind,
                         ", expected GF_ALLREDUCE (0) to GF_BARRIER (8)"));
  }
  const int32_t wire = given.wire_dtype == -1 ? given.dtype : given.wire_dtype;
  if (!IsDType(given.dtype) || !IsDType(wire)) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("call: dtype ", given.dtype, " and wire dtype ",
                         given.wire_dtype, ", expected 0 to ",
                         gradientflow::kernels::kDTypes - 1));
  }
  if (given.op < GF_SUM || given.op > GF_BIT_XOR) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("call: op ", given.op,
                         ", expected GF_SUM (0) to GF_BIT_XOR (7)"));
  }
  CollectiveCall call;
  call.kind = static_cast<CollectiveKind>(given.kind);
  call.group = given.group;
  call.input = given.input;
  call.output = given.output;
  call.count = given.count;
  call.dtype = static_cast<DType>(given.dtype);
  call.wire = static_cast<DType>(wire);
  call.op = static_cast<ReduceOp>(given.op);
  call.root = given.root;
  call.scale = given.scale;
  if (given.send_counts == nullptr && given.recv_counts == nullptr) return call;
  const Result<std::size_t> size = session.GroupSize(given.group);
  if (!size.ok()) return size.status();
  if (given.send_counts != nullptr) {
    call.send_counts.assign(given.send_counts,
                            given.send_counts + size.value());
  }
  if (given.recv_counts != nullptr) {
    call.recv_counts.assign(given.recv_counts,
                            given.recv_counts + size.value());
  }
  return call;
}

Status Taken(Result<std::uint64_t> started, uint64_t* ticket) {
  if (!started.ok()) return started.status();
  *ticket = started.value();
  return Status();
}

}  // namespace

Result<std::size_t> gf_session::GroupSize(uint32_t group) const {
  if (group == 0) return static_cast<std::size_t>(session->size());
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = group_sizes.find(group);
  if (found != group_sizes.end()) return found->second;
  return Status(StatusCode::kInvalidArgument,
                StrCat("group ", group, " is not open"));
}

gf_status gf_group_open(gf_session* session, uint32_t id, const int32_t* ranks,
                        size_t count) {
  if (session == nullptr || (ranks == nullptr && count > 0)) {
    return Invalid("gf_group_open: session or ranks are null");
  }
  return Guard([&]() -> Status {
    const Status opened =
        session->session->OpenGroup(id, std::vector<int>(ranks, ranks + count));
    if (!opened.ok()) return opened;
    const std::lock_guard<std::mutex> lock(session->mutex);
    session->group_sizes[id] = count;
    return Status();
  });
}

gf_status gf_group_close(gf_session* session, uint32_t id) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(session->session->CheckProcess());
    const Status closed = session->session->CloseGroup(id);
    const std::lock_guard<std::mutex> lock(session->mutex);
    session->group_sizes.erase(id);
    return closed;
  });
}

void gf_call_init(gf_call* call) {
  *call = gf_call{};
  call->struct_bytes = sizeof(*call);
  call->wire_dtype = -1;
  call->scale = 1.0F;
}

gf_status gf_start(gf_session* session, const gf_call* call, gf_done done,
                   void* user, uint64_t* ticket) {
  if (session == nullptr || call == nullptr || done == nullptr ||
      ticket == nullptr) {
    return Invalid("gf_start: an argument is null");
  }
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(session->session->CheckProcess());
    const Result<gf_call> full = Complete(call);
    if (!full.ok()) return full.status();
    const Result<CollectiveCall> made = Translate(*session, full.value());
    if (!made.ok()) return made.status();
    return Taken(session->session->StartThen(made.value(), Calls(done, user)),
                 ticket);
  });
}

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_send_start(gf_session* session, uint32_t group, const void* data,
                        size_t bytes, int32_t peer, uint32_t tag, gf_done done,
                        void* user, uint64_t* ticket) {
  if (session == nullptr || (data == nullptr && bytes > 0) || done == nullptr ||
      ticket == nullptr) {
    return Invalid("gf_send_start: an argument is null");
  }
  return Guard([&] {
    return Taken(session->session->StartSend({group, peer, tag}, data, bytes,
                                             Calls(done, user)),
                 ticket);
  });
}

// NOLINTNEXTLINE(readability-function-size): as in C.
gf_status gf_recv_start(gf_session* session, uint32_t group, void* data,
                        size_t bytes, int32_t peer, uint32_t tag,
                        int32_t* source, gf_done done, void* user,
                        uint64_t* ticket) {
  if (session == nullptr || (data == nullptr && bytes > 0) || done == nullptr ||
      ticket == nullptr) {
    return Invalid("gf_recv_start: an argument is null");
  }
  return Guard([&] {
    return Taken(session->session->StartRecv({group, peer, tag, source}, data,
                                             bytes, Calls(done, user)),
                 ticket);
  });
}

gf_status gf_await(gf_session* session, uint64_t ticket, double seconds) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&] { return session->session->Await(ticket, seconds); });
}
