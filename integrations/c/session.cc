#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/base/fork.h"
#include "gradientflow/base/str_cat.h"
#include "integrations/c/handles.h"

using gradientflow::AsyncStep;
using gradientflow::BufferView;
using gradientflow::GradientSession;
using gradientflow::OptimizerGroup;
using gradientflow::OptimizerOptions;
using gradientflow::Result;
using gradientflow::Status;
using gradientflow::StatusCode;
using gradientflow::StepStats;
using gradientflow::StrCat;
using gradientflow::TensorSpec;
using gradientflow::c_api::Guard;
using gradientflow::c_api::Invalid;
using gradientflow::c_api::SpecsOf;
using gradientflow::c_api::WithDefaults;

namespace {

// A model's gradients, for C. The functions check what C can get wrong (null
// pointers, short structs, enumerators), translate it, and call the
// GradientSession: the rules of a step are there.

Result<OptimizerOptions> ConfigOf(const gf_optimizer* optimizer) {
  const auto bad = [](std::string text) {
    return Status(StatusCode::kInvalidArgument, std::move(text));
  };
  if (optimizer == nullptr) return bad("optimizer: an argument is null");
  if (optimizer->struct_bytes < offsetof(gf_optimizer, lr)) {
    return bad(StrCat("optimizer: struct_bytes is ", optimizer->struct_bytes,
                      "; call gf_optimizer_init()"));
  }
  const gf_optimizer given = WithDefaults(*optimizer, gf_optimizer_init);
  if (given.kind != GF_SGD && given.kind != GF_LARS) {
    return bad(
        StrCat("optimizer kind ", given.kind, ": expected GF_SGD or GF_LARS"));
  }
  OptimizerOptions config;
  config.kind = static_cast<OptimizerOptions::Kind>(given.kind);
  config.lr = given.lr;
  config.momentum = given.momentum;
  config.weight_decay = given.weight_decay;
  config.nesterov = given.nesterov != 0;
  config.lars_eta = given.lars_eta;
  config.lars_eps = given.lars_eps;
  return config;
}

gf_status CheckStats(const gf_step_stats* stats) {
  if (stats == nullptr ||
      stats->struct_bytes >= offsetof(gf_step_stats, step)) {
    return GF_OK;
  }
  return Invalid(StrCat("stats: struct_bytes is ", stats->struct_bytes,
                        "; call gf_step_stats_init()"));
}

// Writes as much as the caller's struct has room for; `stats` may be null.
void Write(const StepStats& s, gf_step_stats* stats) {
  if (stats == nullptr) return;
  const gradientflow::RemoteWrites rdma =
      s.rdma.value_or(gradientflow::RemoteWrites());
  const gf_step_stats full = {
      sizeof(full),
      s.step,
      s.buckets,
      s.bytes_sent,
      s.selected_chunks,
      s.chunks,
      s.backward_seconds,
      s.exposed_seconds,
      s.hidden_seconds,
      s.nonfinite ? 1 : 0,
      s.gradient_scale,
      s.bucket_bytes,
      rdma.data,
      rdma.control,
      rdma.bytes,
      rdma.retries ? static_cast<int64_t>(*rdma.retries) : -1};
  const size_t room = stats->struct_bytes;
  std::memcpy(stats, &full, room < sizeof(full) ? room : sizeof(full));
  stats->struct_bytes = room;
}

gf_status CheckTensor(const gf_session* session, size_t tensor) {
  if (session == nullptr) return Invalid("session is null");
  if (tensor >= session->session->tensors()) {
    return Invalid(StrCat("tensor ", tensor, ": there are only ",
                          session->session->tensors()));
  }
  return GF_OK;
}

gf_status InFork(const gf_session& session) {
  return Guard([&] { return session.session->CheckProcess(); });
}

}  // namespace

Result<std::vector<TensorSpec>> gradientflow::c_api::SpecsOf(
    const gf_tensor* tensors, size_t count) {
  std::vector<TensorSpec> specs;
  const auto* at = reinterpret_cast<const char*>(tensors);
  for (size_t i = 0; i < count; ++i) {
    const auto& given = *reinterpret_cast<const gf_tensor*>(at);
    if (given.struct_bytes < offsetof(gf_tensor, always_dense)) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("tensor ", i, ": struct_bytes is ",
                           given.struct_bytes, "; call gf_tensor_init()"));
    }
    const gf_tensor tensor = WithDefaults(given, gf_tensor_init);
    specs.push_back({tensor.name != nullptr ? tensor.name : "", tensor.elements,
                     tensor.always_dense != 0, tensor.skip_lars != 0});
    at += given.struct_bytes;
  }
  return specs;
}

void gf_tensor_init(gf_tensor* tensor) {
  *tensor = gf_tensor{};
  tensor->struct_bytes = sizeof(*tensor);
}

void gf_step_stats_init(gf_step_stats* stats) {
  *stats = gf_step_stats{};
  stats->struct_bytes = sizeof(*stats);
}

void gf_optimizer_init(gf_optimizer* optimizer) {
  const OptimizerOptions defaults;
  *optimizer = gf_optimizer{sizeof(*optimizer),    GF_SGD,
                            defaults.lr,           defaults.momentum,
                            defaults.weight_decay, defaults.nesterov ? 1 : 0,
                            defaults.lars_eta,     defaults.lars_eps};
}

gf_status gf_session_open(gf_comm* comm, uint32_t group,
                          const gf_options* options, const gf_tensor* tensors,
                          size_t count, gf_session** out) {
  if (out == nullptr) return Invalid("out is null");
  *out = nullptr;
  if (comm == nullptr || options == nullptr ||
      (tensors == nullptr && count > 0)) {
    return Invalid("gf_session_open: comm, options or tensors are null");
  }
  return Guard([&]() -> Status {
    Result<std::vector<TensorSpec>> specs = SpecsOf(tensors, count);
    if (!specs.ok()) return specs.status();
    auto handle = std::make_unique<gf_session>();
    Result<std::unique_ptr<GradientSession>> session = GradientSession::Open(
        comm->comm, specs.value(), options->options, group);
    if (!session.ok()) return session.status();
    handle->session = std::move(session).value();
    *out = handle.release();
    return Status();
  });
}

void gf_session_close(gf_session* session) {
  // A fork has no threads that could close the session: it leaves it alone.
  if (session != nullptr && session->session->forked()) {
    return gradientflow::LeaveBehind(session);
  }
  delete session;
}

int32_t gf_session_rank(const gf_session* session) {
  return session == nullptr ? -1 : session->session->rank();
}

int32_t gf_session_size(const gf_session* session) {
  return session == nullptr ? -1 : session->session->size();
}

gf_status gf_session_gradient(const gf_session* session, size_t tensor,
                              void** data, size_t* bytes) {
  if (gf_status bad = CheckTensor(session, tensor); bad != GF_OK) return bad;
  const BufferView view = session->session->gradient(tensor);
  if (data != nullptr) *data = view.data;
  if (bytes != nullptr) *bytes = view.bytes;
  return GF_OK;
}

gf_status gf_session_pool(const gf_session* session, void** data,
                          size_t* bytes) {
  if (session == nullptr) return Invalid("session is null");
  const BufferView view = session->session->pool();
  if (data != nullptr) *data = view.data;
  if (bytes != nullptr) *bytes = view.bytes;
  return GF_OK;
}

gf_status gf_session_pool_offset(const gf_session* session, size_t tensor,
                                 size_t* elements) {
  if (gf_status bad = CheckTensor(session, tensor); bad != GF_OK) return bad;
  if (elements == nullptr) return Invalid("elements is null");
  *elements = session->session->pool_offset(tensor);
  return GF_OK;
}

gf_status gf_session_pool_device(const gf_session* session, int32_t* kind,
                                 int32_t* index) {
  if (session == nullptr) return Invalid("session is null");
  const gradientflow::DeviceId device = session->session->pool().device;
  const bool cuda = device.kind == gradientflow::DeviceId::Kind::kCuda;
  if (kind != nullptr) *kind = cuda ? GF_CUDA : GF_CPU;
  if (index != nullptr) *index = device.index;
  return GF_OK;
}

gf_status gf_session_set_stream(gf_session* session, void* stream) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&] { return session->session->SetStream(stream); });
}

gf_status gf_session_ready(gf_session* session, size_t tensor) {
  if (gf_status bad = CheckTensor(session, tensor); bad != GF_OK) return bad;
  if (session->session->forked()) return InFork(*session);
  session->session->GradientReady(tensor);
  return GF_OK;
}

gf_status gf_session_absent(gf_session* session, size_t tensor) {
  if (gf_status bad = CheckTensor(session, tensor); bad != GF_OK) return bad;
  if (session->session->forked()) return InFork(*session);
  session->session->GradientAbsent(tensor);
  return GF_OK;
}

gf_status gf_session_finish_step(gf_session* session, gf_step_stats* stats) {
  if (session == nullptr) return Invalid("session is null");
  if (gf_status bad = CheckStats(stats); bad != GF_OK) return bad;
  return Guard([&]() -> Status {
    Result<StepStats> result = session->session->FinishStep();
    if (!result.ok()) return result.status();
    Write(result.value(), stats);
    return Status();
  });
}

gf_status gf_session_finish_step_async(gf_session* session,
                                       gf_step_stats* stats, int32_t* known,
                                       void** event) {
  if (session == nullptr) return Invalid("session is null");
  if (gf_status bad = CheckStats(stats); bad != GF_OK) return bad;
  return Guard([&]() -> Status {
    Result<AsyncStep> result = session->session->FinishStepAsync();
    if (!result.ok()) return result.status();
    const AsyncStep& left = result.value();
    if (left.known) Write(*left.known, stats);
    if (known != nullptr) *known = left.known ? 1 : 0;
    if (event != nullptr) *event = left.event;
    return Status();
  });
}

gf_status gf_session_zero_gradients(gf_session* session) {
  if (session == nullptr) {
    return Invalid("gf_session_zero_gradients: the session is null");
  }
  return Guard([&] { return session->session->ZeroGradients(); });
}

gf_status gf_session_set_loss_scale(gf_session* session, float scale) {
  if (session == nullptr) return Invalid("session is null");
  return Guard([&] { return session->session->SetLossScale(scale); });
}

gf_status gf_session_optimizer_step(gf_session* session,
                                    const gf_optimizer* optimizer,
                                    float* const* weights, size_t count) {
  if (session == nullptr || (weights == nullptr && count > 0)) {
    return Invalid("gf_session_optimizer_step: an argument is null");
  }
  return Guard([&]() -> Status {
    Result<OptimizerOptions> config = ConfigOf(optimizer);
    if (!config.ok()) return config.status();
    return session->session->OptimizerStep(
        config.value(), std::vector<float*>(weights, weights + count));
  });
}

gf_status gf_session_optimizer_step_groups(
    gf_session* session, const gf_optimizer* const* groups, size_t group_count,
    const int32_t* group_of, float* const* weights, size_t count) {
  if (session == nullptr || (groups == nullptr && group_count > 0) ||
      ((group_of == nullptr || weights == nullptr) && count > 0)) {
    return Invalid("gf_session_optimizer_step_groups: an argument is null");
  }
  return Guard([&]() -> Status {
    std::vector<OptimizerGroup> all(group_count);
    for (size_t g = 0; g < group_count; ++g) {
      Result<OptimizerOptions> config = ConfigOf(groups[g]);
      if (!config.ok()) return config.status();
      all[g] = {config.value(), std::vector<float*>(count)};
    }
    for (size_t i = 0; i < count; ++i) {
      if (group_of[i] == -1) continue;
      if (group_of[i] < 0 || static_cast<size_t>(group_of[i]) >= group_count) {
        return Status(StatusCode::kInvalidArgument,
                      StrCat("group_of[", i, "]: expected -1 to ",
                             static_cast<int64_t>(group_count) - 1, ", seen ",
                             group_of[i]));
      }
      all[static_cast<size_t>(group_of[i])].weights[i] = weights[i];
    }
    return session->session->OptimizerStep(all);
  });
}

gf_status gf_session_selection(const gf_session* session, uint8_t* out,
                               size_t out_bytes, size_t* chunks) {
  if (session == nullptr || chunks == nullptr) {
    return Invalid("gf_session_selection: session or chunks is null");
  }
  return Guard([&]() -> Status {
    GF_RETURN_IF_ERROR(session->session->CheckProcess());
    const std::vector<std::uint8_t> selection = session->session->selection();
    *chunks = selection.size();
    if (out == nullptr) return Status();
    if (out_bytes < selection.size()) {
      return Status(
          StatusCode::kInvalidArgument,
          StrCat("out has ", out_bytes, " bytes, needs ", selection.size()));
    }
    std::copy(selection.begin(), selection.end(), out);
    return Status();
  });
}

gf_status gf_session_save_state(const gf_session* session, void* out,
                                size_t out_bytes, size_t* bytes) {
  if (session == nullptr || bytes == nullptr) {
    return Invalid("gf_session_save_state: session or bytes is null");
  }
  return Guard([&]() -> Status {
    if (out == nullptr) {
      const Result<std::size_t> needed = session->session->StateBytes();
      if (needed.ok()) *bytes = needed.value();
      return needed.status();
    }
    Result<std::vector<std::byte>> state = session->session->SaveState();
    if (!state.ok()) return state.status();
    *bytes = state.value().size();
    if (out_bytes < *bytes) {
      return Status(StatusCode::kInvalidArgument,
                    StrCat("out has ", out_bytes, " bytes, needs ", *bytes));
    }
    std::memcpy(out, state.value().data(), *bytes);
    return Status();
  });
}

gf_status gf_session_restore_state(gf_session* session, const void* state,
                                   size_t bytes) {
  if (session == nullptr) {
    return Invalid("gf_session_restore_state: session is null");
  }
  return Guard([&] {
    // A null state is refused only after the other ranks have been told, so
    // that all of them fail alike.
    return session->session->RestoreState(
        {static_cast<const std::byte*>(state), state == nullptr ? 0 : bytes});
  });
}
