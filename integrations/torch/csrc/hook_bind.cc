#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "bind.h"
#include "hook_cast.h"
#include "hook_csc.h"
#include "hook_profile.h"
#include "library.h"

namespace gft {
namespace {

namespace py = pybind11;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Buckets = std::vector<std::vector<size_t>>;
using Reducer = std::shared_ptr<c10d::Reducer>;

at::ScalarType WireOf(const std::string& name) {
  if (name == "fp16") return at::kHalf;
  if (name == "bf16") return at::kBFloat16;
  TORCH_CHECK_VALUE(name == "fp32", "wire dtype '", name,
                    "': expected 'fp16', 'bf16' or 'fp32'");
  return at::kFloat;
}

py::dict StatsOfHook(const Hook& hook) {
  const HookStats stats = hook.stats();
  py::dict dict;
  dict["steps"] = stats.steps;
  dict["payload_bytes"] = stats.payload_bytes;
  dict["chunks"] = stats.chunks;
  dict["selected_chunks"] = stats.selected_chunks;
  dict["chunk_elements"] = stats.chunk_elements;
  return dict;
}

std::shared_ptr<Hook> RegisterCast(const Reducer& reducer,
                                   const GroupPtr& group,
                                   const std::string& wire,
                                   std::shared_ptr<HookProfile> profile) {
  auto hook = std::make_shared<CastHook>(group, WireOf(wire));
  Register(*reducer, hook, std::move(profile));
  return hook;
}

std::shared_ptr<CscHook> RegisterCsc(
    const Reducer& reducer, const GroupPtr& group,
    std::vector<at::Tensor> parameters, std::vector<bool> always_dense,
    double sparsity, size_t chunk_elements, uint64_t warmup_steps,
    const std::string& wire, bool staged, float keep_factor,
    std::shared_ptr<HookProfile> profile) {
  CscModel model = {std::move(parameters), std::move(always_dense), {}, staged};
  gf_csc_config_init(&model.config);
  model.config.sparsity = sparsity;
  model.config.chunk_elements = chunk_elements;
  model.config.warmup_steps = warmup_steps;
  model.config.wire_dtype = *DtypeOf(WireOf(wire));
  model.config.keep_factor = keep_factor;
  auto hook = std::make_shared<CscHook>(group, WireOf(wire), std::move(model));
  Register(*reducer, hook, std::move(profile));
  return hook;
}

// Returns (step, loss scale, buckets, selected, residuals); the buckets are
// lists of the parameters' indices, and a residual may be None.
py::tuple SaveHook(CscHook& hook) {
  CscState state;
  {
    const py::gil_scoped_release no_gil;
    state = hook.Save();
  }
  return py::make_tuple(state.step, state.loss_scale, state.buckets,
                        state.selected, state.residuals);
}

// Whether DDP's buckets hold exactly these parameters.
bool HasBuckets(const c10d::Reducer& reducer, const CscModel& model,
                const Buckets& buckets) {
  const auto present = reducer.get_grad_buckets(/*return_zero_tensors=*/false);
  if (present.size() != buckets.size()) return false;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const std::vector<at::Tensor> parameters = present[b].getParameters();
    if (parameters.size() != buckets[b].size()) return false;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].is_same(model.parameters[buckets[b][i]])) return false;
    }
  }
  return true;
}

void CheckState(const CscHook& hook, uint64_t step, float loss_scale,
                Buckets buckets, std::vector<at::Tensor> selected) {
  CscLayout::Check(
      hook.model(),
      {step, loss_scale, std::move(buckets), std::move(selected), {}});
}

// Also gives DDP the buckets of the state: otherwise a new DDP would take one
// step with other buckets, and send everything in it. A DDP that has rebuilt
// its buckets keeps its own, since it would not rebuild them again: the
// selection for other buckets is then not used. `rebuilds` says whether this
// DDP rebuilds its buckets at all.
void RestoreHook(CscHook& hook, const Reducer& reducer, bool rebuilds,
                 uint64_t step, float loss_scale, Buckets buckets,
                 std::vector<at::Tensor> selected,
                 const std::vector<std::optional<at::Tensor>>& residuals) {
  CscState state = {
      step, loss_scale, std::move(buckets), std::move(selected), {}};
  for (const std::optional<at::Tensor>& residual : residuals) {
    state.residuals.push_back(residual.value_or(at::Tensor()));
  }
  const py::gil_scoped_release no_gil;
  const bool rebuilt = rebuilds && !reducer->should_rebuild_buckets();
  if (!state.buckets.empty() && !rebuilt &&
      !HasBuckets(*reducer, *hook.model(), state.buckets)) {
    reducer->initialize_buckets(state.buckets);
    TORCH_CHECK(HasBuckets(*reducer, *hook.model(), state.buckets),
                "the csc hook: DDP did not take over the buckets of the state");
  }
  hook.Restore(std::move(state));
}

void BindProfile(py::module& module) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<HookProfile, std::shared_ptr<HookProfile>>(module, "HookProfile")
      .def_static(
          "open",
          [](const GroupPtr& group, std::vector<std::string> names,
             std::vector<at::Tensor> parameters, std::string device) {
            return HookProfile::Open(
                group,
                {std::move(names), std::move(parameters), std::move(device)});
          },
          py::arg("group"), py::arg("names"), py::arg("parameters"),
          py::arg("device"))
      .def("optimizer_begins", &HookProfile::OptimizerBegins, NoGil())
      .def("optimizer_ends", &HookProfile::OptimizerEnds, NoGil())
      .def("close", &HookProfile::Close, NoGil());
}

}  // namespace

void BindHook(py::module& module) {
  BindProfile(module);
  py::class_<Hook, std::shared_ptr<Hook>>(module, "Hook")
      .def("stats", &StatsOfHook);
  py::class_<CscHook, Hook, std::shared_ptr<CscHook>>(module, "CscHook")
      .def("save", &SaveHook)
      .def("check", &CheckState)
      .def("restore", &RestoreHook)
      .def("set_loss_scale", &CscHook::SetLossScale,
           py::call_guard<py::gil_scoped_release>())
      .def("finish_shadow", &CscHook::FinishShadow,
           py::call_guard<py::gil_scoped_release>());
  module.def("register_cast_hook", &RegisterCast, py::arg("reducer"),
             py::arg("group"), py::arg("wire"), py::arg("profile") = nullptr);
  module.def("register_csc_hook", &RegisterCsc, py::arg("reducer"),
             py::arg("group"), py::arg("parameters"), py::arg("always_dense"),
             py::arg("sparsity"), py::arg("chunk_elements"),
             py::arg("warmup_steps"), py::arg("wire"),
             py::arg("staged") = false, py::arg("keep_factor") = 1.0F,
             py::arg("profile") = nullptr);
}

}  // namespace gft
