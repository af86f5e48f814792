#include "bind.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "GradientFlow's C++ side for PyTorch.";
  gft::BindLibrary(module);
  gft::BindBackend(module);
  gft::BindHook(module);
  gft::BindDataParallel(module);
}
