#include "backend_checks.h"

#include <ATen/core/ATen_fwd.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace gft {
namespace {

// Requires one dense tensor for each rank, of the type of `part`.
void CheckList(const char* what, const std::vector<at::Tensor>& parts,
               const at::Tensor& part, int size) {
  TORCH_CHECK_VALUE(parts.size() == static_cast<size_t>(size),
                    "GradientFlow: ", what, ": a list of ", parts.size(),
                    " tensors, expected one for each of ", size, " ranks");
  TORCH_CHECK_VALUE(part.layout() == at::kStrided, "GradientFlow: ", what,
                    ": only supports dense tensors");
  for (size_t i = 0; i < parts.size(); ++i) {
    TORCH_CHECK_VALUE(parts[i].layout() == at::kStrided &&
                          parts[i].scalar_type() == part.scalar_type(),
                      "GradientFlow: ", what, ": tensor ", i,
                      " of the list is ", parts[i].toString(), ", expected ",
                      part.toString());
  }
}

void CheckAlike(const char* what, const std::vector<at::Tensor>& parts,
                const at::Tensor& part, size_t i) {
  TORCH_CHECK_VALUE(parts[i].numel() == part.numel(), "GradientFlow: ", what,
                    ": tensor ", i, " of the list is of sizes ",
                    parts[i].sizes(), ", expected ", part.sizes());
}

}  // namespace

void CheckDense(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "GradientFlow: ", what,
                    ": only supports dense tensors, not of layout ",
                    tensor.layout());
}

const at::Tensor& Only(const char* what, const std::vector<at::Tensor>& list) {
  TORCH_CHECK_VALUE(list.size() == 1, "GradientFlow: ", what, ": a list of ",
                    list.size(), " tensors, expected one");
  return list.front();
}

void CheckRoot(const char* what, int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, "GradientFlow: ", what,
                    ": invalid root rank: ", root, ", expected 0 to ",
                    size - 1);
}

void CheckWhole(const char* what, const at::Tensor& whole,
                const at::Tensor& part, int size) {
  TORCH_CHECK_VALUE(
      whole.layout() == at::kStrided && part.layout() == at::kStrided,
      "GradientFlow: ", what, ": only supports dense tensors");
  TORCH_CHECK_VALUE(whole.scalar_type() == part.scalar_type(),
                    "GradientFlow: ", what, ": tensors of ",
                    whole.scalar_type(), " and ", part.scalar_type(),
                    ", expected one type");
  TORCH_CHECK_VALUE(whole.numel() == part.numel() * size,
                    "GradientFlow: ", what, ": a tensor of ", whole.numel(),
                    " elements for parts of ", part.numel(), " of ", size,
                    " ranks, expected ", part.numel() * size);
}

void CheckParts(const char* what, const std::vector<at::Tensor>& parts,
                const at::Tensor& part, int size) {
  CheckList(what, parts, part, size);
  for (size_t i = 0; i < parts.size(); ++i) CheckAlike(what, parts, part, i);
}

void CheckOwnPart(const char* what, const std::vector<at::Tensor>& parts,
                  const at::Tensor& part, int rank, int size) {
  CheckList(what, parts, part, size);
  CheckAlike(what, parts, part, rank);
}

bool AreEqual(const std::vector<at::Tensor>& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) {
    return part.numel() == parts.front().numel();
  });
}

void CheckRootList(const char* what, size_t lists, bool root) {
  TORCH_CHECK_VALUE(
      lists == (root ? 1 : 0), "GradientFlow: ", what, ": ", lists,
      " lists of tensors on the ",
      root ? "root, expected one" : "rank that is not the root, expected none");
}

void CheckPairs(const char* what, size_t outputs, size_t inputs) {
  TORCH_CHECK_VALUE(outputs == inputs && inputs > 0, "GradientFlow: ", what,
                    ": ", inputs, " inputs and ", outputs,
                    " outputs, expected as many, and some");
}

}  // namespace gft
