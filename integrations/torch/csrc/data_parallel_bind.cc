#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "data_parallel.h"
#include "data_parallel_broadcast.h"
#include "exchange.h"
#include "library.h"

namespace gft {
namespace {

namespace py = pybind11;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Settings = std::vector<std::pair<std::string, std::string>>;

// Watches output tensors in tuples, lists, dicts and dataclasses. Tensors
// elsewhere are not seen: a step then begins with its first gradient.
void WatchAll(DataParallel& model, py::handle object) {
  if (THPVariable_Check(object.ptr())) {
    model.Watch(THPVariable_Unpack(object.ptr()));
  } else if (py::isinstance<py::dict>(object)) {
    for (const auto& item : py::reinterpret_borrow<py::dict>(object)) {
      WatchAll(model, item.second);
    }
  } else if (py::isinstance<py::tuple>(object) ||
             py::isinstance<py::list>(object)) {
    for (const py::handle item : object) WatchAll(model, item);
  } else if (py::hasattr(object, "__dataclass_fields__") &&
             py::hasattr(object, "__dict__")) {
    WatchAll(model, object.attr("__dict__"));
  }
}

// `descriptions` must outlive the result, which points into them.
std::vector<gf_tensor> TensorsOf(const std::vector<std::string>& descriptions,
                                 const std::vector<at::Tensor>& parameters) {
  std::vector<gf_tensor> tensors(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    gf_tensor_init(&tensors[i]);
    tensors[i].name = descriptions[i].c_str();
    tensors[i].elements = static_cast<size_t>(parameters[i].numel());
    // Biases and the weights of normalisation layers.
    tensors[i].skip_lars = parameters[i].dim() <= 1 ? 1 : 0;
  }
  return tensors;
}

// A peer may take as long to come to a step, and to join, as to come to a
// collective of the group: the time-out of init_process_group() or new_group().
void SetTimeouts(const GroupPtr& group, c10::DeviceType device,
                 Options& options) {
  std::chrono::milliseconds timeout;
  try {
    timeout = group->getBackend(device)->getBackendOptions()->timeout;
  } catch (const c10::Error&) {
    return;  // No backend for the device, or it tells no time-out.
  }
  options.Set("timeout_seconds", timeout);
  options.Set("join_timeout_seconds", timeout);
}

// Opens a session over the ranks of a process group, which meet in its store.
std::shared_ptr<Session> OpenIn(const GroupPtr& group, Options options,
                                const std::vector<gf_tensor>* tensors) {
  Joining joining;
  joining.store = group->getStore();
  TORCH_CHECK(
      joining.store != nullptr,
      "gradientflow.torch.DataParallel: the process group has no store");
  joining.rank = group->getRank();
  joining.size = group->getSize();
  joining.timeout = options.GetTime("join_timeout_seconds");
  joining.prefix =
      NextRound(*joining.store, "gradientflow/data_parallel", joining.rank);
  return OpenOverStore(std::move(options), std::move(joining), tensors);
}

// Applies `settings`, which are the user's. The pool has the parameters' type
// and device, since their gradients are views of it.
void SetAll(const Settings& settings, const at::Tensor& parameter,
            Options& options) {
  const std::string type = options.Get("pool_dtype");
  const std::string device = options.Get("device");
  for (const auto& [name, value] : settings) options.Set(name.c_str(), value);
  TORCH_CHECK_VALUE(
      options.Get("pool_dtype") == type,
      "options: pool_dtype=", options.Get("pool_dtype"), ", but gradients of ",
      parameter.scalar_type(), " parameters are kept in ", type,
      ": convert the module before, as by module.half(), or give wire_dtype or "
      "compression, for what travels");
  TORCH_CHECK_VALUE(options.Get("device") == device,
                    "options: device=", options.Get("device"),
                    ", but the parameters are on ", parameter.device(),
                    ": move the module before, as by module.to(device)");
  TORCH_CHECK_VALUE(options.Get("accumulate") == "off",
                    "options: accumulate=on, but DataParallel writes each "
                    "step's gradients to the pool anew: expected off");
  TORCH_CHECK_VALUE(options.Get("zero_kept") == "on",
                    "options: zero_kept=off, but then each rank would see "
                    "gradients of its own: expected on");
}

std::shared_ptr<DataParallel> Open(const std::optional<GroupPtr>& group,
                                   const Settings& settings,
                                   std::vector<std::string> names,
                                   std::vector<at::Tensor> parameters,
                                   bool find_unused) {
  Options options = Options::FromEnv();
  const at::ScalarType type = PoolTypeFor(parameters);
  const char* type_name = gf_dtype_name(*DtypeOf(type));
  options.Set("pool_dtype", type_name);
  if (type != at::kFloat) options.Set("wire_dtype", type_name);
  const at::Device device = parameters.at(0).device();
  options.Set("device", device.is_cuda()
                            ? "cuda:" + std::to_string(device.index())
                            : "cpu");
  // If every rank clipped by a norm of its own kept-back values, the ranks
  // would drift apart.
  options.Set("zero_kept", "on");
  if (group) SetTimeouts(*group, device.type(), options);
  SetAll(settings, parameters[0], options);
  DataParallelConfig config;
  config.pool_type = type;
  config.loss_scale = std::stof(options.Get("loss_scale"));
  config.sparse = std::stod(options.Get("sparsity")) > 0;
  if (config.sparse) {
    config.chunk_elements = std::stoull(options.Get("chunk_elements"));
  }
  if (config.sparse && options.Get("residual") == "momentum") {
    config.momentum = std::stod(options.Get("momentum"));
  }
  config.find_unused = find_unused;
  std::vector<std::string> descriptions;
  for (size_t i = 0; i < names.size(); ++i) {
    descriptions.push_back(DescriptionOf(names[i], parameters[i]));
  }
  const std::vector<gf_tensor> tensors = TensorsOf(descriptions, parameters);
  std::shared_ptr<Session> session =
      group ? OpenIn(*group, std::move(options), &tensors)
            : Session::Open(options, &tensors);
  return DataParallel::Make(std::move(session), std::move(names),
                            std::move(parameters), config);
}

py::dict StatsOf(const DataParallel& model) {
  const gf_step_stats& stats = model.stats();
  py::dict dict;
  dict["step"] = stats.step;
  dict["buckets"] = stats.buckets;
  dict["bytes_sent"] = stats.bytes_sent;
  dict["selected_chunks"] = stats.selected_chunks;
  dict["chunks"] = stats.chunks;
  dict["chunk_elements"] = model.config().chunk_elements;
  dict["backward_seconds"] = stats.backward_seconds;
  dict["exposed_seconds"] = stats.exposed_seconds;
  dict["hidden_seconds"] = stats.hidden_seconds;
  dict["nonfinite"] = stats.nonfinite != 0;
  dict["gradient_scale"] = stats.gradient_scale;
  dict["bucket_bytes"] = stats.bucket_bytes;
  if (stats.rdma_data_writes + stats.rdma_control_writes > 0) {
    dict["rdma_data_writes"] = stats.rdma_data_writes;
    dict["rdma_control_writes"] = stats.rdma_control_writes;
    dict["rdma_bytes"] = stats.rdma_bytes;
    if (stats.rdma_retries >= 0) dict["rdma_retries"] = stats.rdma_retries;
  }
  return dict;
}

// The fields are lars, lr, momentum, weight_decay, nesterov, eta, eps.
using GroupFields = std::tuple<bool, float, float, float, bool, float, float>;

void Step(DataParallel& model, const std::vector<GroupFields>& groups,
          std::vector<int32_t> group_of) {
  std::vector<gf_optimizer> optimizers;
  for (const GroupFields& group : groups) {
    gf_optimizer& optimizer = optimizers.emplace_back();
    gf_optimizer_init(&optimizer);
    bool lars = false;
    bool nesterov = false;
    std::tie(lars, optimizer.lr, optimizer.momentum, optimizer.weight_decay,
             nesterov, optimizer.lars_eta, optimizer.lars_eps) = group;
    optimizer.kind = lars ? GF_LARS : GF_SGD;
    optimizer.nesterov = nesterov ? 1 : 0;
  }
  model.OptimizerStep(optimizers, std::move(group_of));
}

at::Tensor Save(const DataParallel& model) {
  const std::vector<uint8_t> state = model.SaveState();
  at::Tensor tensor =
      at::empty({static_cast<int64_t>(state.size())}, at::kByte);
  std::copy(state.begin(), state.end(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

void Restore(DataParallel& model, const at::Tensor& state) {
  TORCH_CHECK_VALUE(state.scalar_type() == at::kByte && state.is_contiguous() &&
                        state.is_cpu(),
                    "the session's state is ", state.scalar_type(), " on ",
                    state.device(), ", expected uint8 on the CPU");
  model.RestoreState(state.const_data_ptr<uint8_t>(), state.nbytes());
}

}  // namespace

void BindDataParallel(py::module& module) {
  using no_gil = py::call_guard<py::gil_scoped_release>;
  py::class_<DataParallel, std::shared_ptr<DataParallel>>(module,
                                                          "DataParallel")
      .def(py::init(&Open), py::arg("group"), py::arg("settings"),
           py::arg("names"), py::arg("parameters"), py::arg("find_unused"),
           no_gil())
      .def_property_readonly(
          "rank", [](const DataParallel& m) { return m.session().rank(); })
      .def_property_readonly(
          "size", [](const DataParallel& m) { return m.session().size(); })
      .def_property_readonly(
          "momentum", [](const DataParallel& m) { return m.config().momentum; })
      .def_property_readonly("stats", &StatsOf)
      .def("begin_forward", &DataParallel::BeginForward)
      .def("watch", &WatchAll)
      .def("set_sync", &DataParallel::SetSync)
      .def("set_loss_scale", &DataParallel::SetLossScale, no_gil())
      .def(
          "broadcast",
          [](const DataParallel& model,
             const std::vector<at::Tensor>& tensors) {
            BroadcastTensors(model.session(), tensors);
          },
          no_gil())
      .def("optimizer_step", &Step, py::arg("groups"), py::arg("group_of"),
           no_gil())
      .def("save_state", &Save, no_gil())
      .def("restore_state", &Restore, no_gil())
      .def("close", &DataParallel::Close, no_gil());
}

}  // namespace gft
