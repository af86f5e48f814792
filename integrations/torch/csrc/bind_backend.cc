#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "backend.h"
#include "bind.h"
#include "callbacks.h"
#include "session.h"

namespace gft {
namespace {

namespace py = pybind11;
using Unlocked = py::call_guard<py::gil_scoped_release>;
using Milliseconds = std::chrono::milliseconds;

Backend::OptionsPtr MakeOptions(Milliseconds timeout, const std::string& name,
                                const std::vector<uint64_t>& global_ranks) {
  auto options = c10::make_intrusive<Backend::Options>(timeout);
  options->group_name = name;
  options->global_ranks_in_group = global_ranks;
  return options;
}

}  // namespace

void BindBackend(py::module& module) {
  // Registers torch's base classes with pybind11.
  py::module::import("torch._C._distributed_c10d");
  py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend> backend(
      module, "Backend",
      "torch.distributed's backend \"gradientflow\"; see open() and "
      "subgroup().");
  py::class_<Backend::Options, Backend::OptionsPtr, c10d::Backend::Options>(
      backend, "Options")
      .def(py::init(&MakeOptions), py::arg("timeout"),
           py::arg("group_name") = "",
           py::arg("global_ranks_in_group") = std::vector<uint64_t>());
  backend
      .def_static("open", &Backend::Open, Unlocked(), py::arg("store"),
                  py::arg("rank"), py::arg("size"), py::arg("options"),
                  "Opens a session of its own, whose ranks meet in the store.")
      .def("subgroup", &Backend::Subgroup, Unlocked(), py::arg("store"),
           py::arg("ranks"), py::arg("options"),
           "A group of some of this group's ranks, on its session.")
      .def_property_readonly(
          "session_ranks",
          [](const Backend& self) { return self.group()->ranks(); },
          "Rank i of the group is this rank of the session.")
      // torch calls this on ranks that are not in the group that is split off.
      .def("perform_nocolor_split", [](Backend&, const py::object&) {});
  module.def(
      "close_all",
      [] {
        Session::CloseAll();
        StopCallbacks();
      },
      Unlocked(),
      "Closes all sessions and ends callbacks: before the interpreter ends.");
}

}  // namespace gft
