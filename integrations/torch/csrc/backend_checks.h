#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

// Arguments of operations: what is wrong is a ValueError, which says what was
// expected. `what` names the operation, `size` is the group's.
namespace gft {

void CheckDense(const char* what, const at::Tensor& tensor);
// The only tensor of a list, which is dense or sparse.
const at::Tensor& Only(const char* what, const std::vector<at::Tensor>& list);
void CheckRoot(const char* what, int64_t root, int size);
// That `whole` is as many elements as `part` of each rank, of its type.
void CheckWhole(const char* what, const at::Tensor& whole,
                const at::Tensor& part, int size);
// That there is one part per rank, each like `part`.
void CheckParts(const char* what, const std::vector<at::Tensor>& parts,
                const at::Tensor& part, int size);
// The same where parts may differ in size, and `part` is that of `rank`.
void CheckOwnPart(const char* what, const std::vector<at::Tensor>& parts,
                  const at::Tensor& part, int rank, int size);
// Whether all have as many elements.
bool AreEqual(const std::vector<at::Tensor>& parts);
// That the root gave one list, and nobody else any.
void CheckRootList(const char* what, size_t lists, bool root);
// That there are as many of each, and some.
void CheckPairs(const char* what, size_t outputs, size_t inputs);

}  // namespace gft
