#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

// Checks of the arguments of operations. Each throws a ValueError that says
// what was expected. `what` names the operation; `size` is that of the group.
namespace gft {

void CheckDense(const char* what, const at::Tensor& tensor);
// Returns the only tensor of a list; it may be dense or sparse.
const at::Tensor& Only(const char* what, const std::vector<at::Tensor>& list);
void CheckRoot(const char* what, int64_t root, int size);
// Requires `whole` to have `size` times the elements of `part`, and its type.
void CheckWhole(const char* what, const at::Tensor& whole,
                const at::Tensor& part, int size);
// Requires one part per rank, each like `part`.
void CheckParts(const char* what, const std::vector<at::Tensor>& parts,
                const at::Tensor& part, int size);
// The same, but parts may differ in size, and `part` is that of `rank`.
void CheckOwnPart(const char* what, const std::vector<at::Tensor>& parts,
                  const at::Tensor& part, int rank, int size);
// Whether all parts have equally many elements.
bool AreEqual(const std::vector<at::Tensor>& parts);
// Requires one list from the root, and none from the other ranks.
void CheckRootList(const char* what, size_t lists, bool root);
// Requires as many outputs as inputs, and at least one.
void CheckPairs(const char* what, size_t outputs, size_t inputs);

}  // namespace gft
