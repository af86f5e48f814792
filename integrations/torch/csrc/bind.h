#pragma once

#include <torch/csrc/utils/pybind.h>

namespace gft {

// Each adds its part to the extension module gradientflow.torch._C.
void BindLibrary(pybind11::module& module);
void BindBackend(pybind11::module& module);
void BindHook(pybind11::module& module);
void BindDataParallel(pybind11::module& module);

}  // namespace gft
