#include "backend_all_to_all.h"

#include <c10/util/Exception.h>

#include <numeric>

namespace gft {
namespace {

constexpr char kBase[] = "gradientflow:all_to_all_single";
constexpr char kLists[] = "gradientflow:all_to_all";

// How many of the library's elements go to or come from each rank, for a tensor
// that is split along its first dimension.
std::vector<size_t> CountsOf(const char* side, const at::Tensor& tensor,
                             const std::vector<int64_t>& splits, int size) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && tensor.dim() > 0,
                    "GradientFlow: ", kBase, ": ", side,
                    " must be dense, with a first dimension to split");
  const int64_t rows = tensor.size(0);
  const size_t whole = ForMove(tensor).count;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "GradientFlow: ", kBase, ": ", side,
                      " of ", rows, " rows does not divide equally across ",
                      size, " ranks");
    return std::vector<size_t>(size, whole / size);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size),
                    "GradientFlow: ", kBase, ": ", splits.size(),
                    " split sizes of ", side, ", expected one for each of ",
                    size, " ranks");
  std::vector<size_t> counts;
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "GradientFlow: ", kBase, ": split size ",
                      split, " of ", side, " is negative");
    sum += split;
    counts.push_back(rows == 0 ? 0 : whole / rows * split);
  }
  TORCH_CHECK_VALUE(sum == rows, "GradientFlow: ", kBase, ": split sizes of ",
                    side, " add up to ", sum, ", expected its ", rows, " rows");
  return counts;
}

std::vector<size_t> CountsOf(const char* side,
                             const std::vector<at::Tensor>& list,
                             at::ScalarType type, int size) {
  TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size),
                    "GradientFlow: ", kLists, ": a list of ", list.size(), " ",
                    side, " tensors, expected one for each of ", size,
                    " ranks");
  std::vector<size_t> counts;
  for (const at::Tensor& tensor : list) {
    TORCH_CHECK_VALUE(
        tensor.layout() == at::kStrided && tensor.scalar_type() == type,
        "GradientFlow: ", kLists, ": ", side, " tensors of ", tensor.toString(),
        " among ", type, ", expected dense ones of one type");
    counts.push_back(ForMove(tensor).count);
  }
  return counts;
}

gf_call CallOf(int32_t dtype, const std::vector<size_t>& send,
               const std::vector<size_t>& receive) {
  gf_call call;
  gf_call_init(&call);
  call.kind = GF_ALL_TO_ALL;
  call.dtype = dtype;
  call.send_counts = send.data();
  call.recv_counts = receive.data();
  return call;
}

}  // namespace

WorkPtr AllToAllSingle(Operations& operations, at::Tensor& output,
                       at::Tensor& input, std::vector<int64_t>& output_splits,
                       std::vector<int64_t>& input_splits,
                       const c10d::AllToAllOptions& opts) {
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(),
                    "GradientFlow: ", kBase, ": input of ", input.scalar_type(),
                    " and output of ", output.scalar_type(),
                    ", expected one type");
  const auto send = CountsOf("input", input, input_splits, operations.size());
  const auto receive =
      CountsOf("output", output, output_splits, operations.size());
  Making work(operations.Begin({c10d::OpType::ALLTOALL_BASE, kBase},
                               opts.timeout, {input}, {output}));
  gf_call call = CallOf(ForMove(input).dtype, send, receive);
  // Without splits on one rank there are none on any, as torch.distributed's
  // MPI backend requires, too.
  if (input_splits.empty() && output_splits.empty() && send == receive) {
    call.send_counts = call.recv_counts = nullptr;
    call.count = send.front();
  }
  call.input = work->lent().Read(input);
  call.output = work->lent().Write(output);
  work->Start(call);
  return operations.Add(work.Commit());
}

WorkPtr AllToAll(Operations& operations, Tensors& outputs, Tensors& inputs,
                 const c10d::AllToAllOptions& opts) {
  TORCH_CHECK_VALUE(!inputs.empty(), "GradientFlow: ", kLists,
                    ": requires a non-empty list of inputs");
  const at::ScalarType type = inputs.front().scalar_type();
  const auto send = CountsOf("input", inputs, type, operations.size());
  const auto receive = CountsOf("output", outputs, type, operations.size());
  Making work(operations.Begin({c10d::OpType::ALLTOALL, kLists}, opts.timeout,
                               inputs, outputs));
  gf_call call = CallOf(ForMove(inputs.front()).dtype, send, receive);
  call.input = work->lent().ReadAll(inputs);
  call.output = work->lent().WriteAll(outputs);
  work->Start(call);
  return operations.Add(work.Commit());
}

}  // namespace gft
