#include "data_parallel_broadcast.h"

#include <ATen/ATen.h>

#include <cstdint>

namespace gft {
namespace {

// Tensors of at least this size travel from where they are; smaller ones are
// packed together.
constexpr int64_t kAloneBytes = 1 << 20;
constexpr int64_t kTogetherBytes = 4 << 20;

void BroadcastBytes(const Session& session, const at::Tensor& tensor) {
  if (tensor.nbytes() == 0) return;
  Check(gf_comm_broadcast(Session::Use(session), tensor.mutable_data_ptr(),
                          tensor.nbytes(), GF_INT8, /*root=*/0),
        "broadcasting parameters or buffers");
}

at::Tensor BytesOf(const at::Tensor& tensor) {
  return tensor.contiguous().reshape({-1}).view(at::kByte);
}

void BroadcastTogether(const Session& session,
                       std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return;
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(BytesOf(tensor));
  const at::Tensor bytes = at::cat(parts);
  BroadcastBytes(session, bytes);
  if (session.rank() != 0) {
    int64_t begin = 0;
    for (at::Tensor& tensor : tensors) {
      const auto size = static_cast<int64_t>(tensor.nbytes());
      // Copy through bytes: an odd offset cannot be viewed as a wider type.
      tensor.copy_(bytes.narrow(0, begin, size)
                       .clone()
                       .view(tensor.scalar_type())
                       .view(tensor.sizes()));
      begin += size;
    }
  }
  tensors.clear();
}

}  // namespace

void BroadcastTensors(const Session& session,
                      const std::vector<at::Tensor>& tensors) {
  if (session.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> together;
  int64_t bytes = 0;
  for (const at::Tensor& given : tensors) {
    const at::Tensor tensor = given.detach();
    const auto size = static_cast<int64_t>(tensor.nbytes());
    if (size == 0) continue;
    const bool fits = !together.empty() && bytes + size <= kTogetherBytes &&
                      together[0].device() == tensor.device();
    if (!fits) {
      BroadcastTogether(session, together);
      bytes = 0;
    }
    if (size >= kAloneBytes && tensor.is_contiguous()) {
      BroadcastTogether(session, together);
      bytes = 0;
      BroadcastBytes(session, tensor);
      continue;
    }
    together.push_back(tensor);
    bytes += size;
  }
  BroadcastTogether(session, together);
}

}  // namespace gft
