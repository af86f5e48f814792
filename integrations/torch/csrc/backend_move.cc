#include "backend_move.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "backend_checks.h"

// Operations that move elements between ranks. What each of them does:
//
//   the caller's tensors
//     -> checks       a wrong list, shape or type is a ValueError here, before
//                     anything has begun
//     -> Begin()      a Work with a number and a time-out
//     -> lent()       memory for the library: the tensors' own where it is
//                     contiguous, else a copy, from which results come back
//     -> Start()      one call of the library if all parts have one size, else
//                     one for each part
//     -> Commit()     all calls are under way; the Work ends with the last
//
// From Begin() on the Work is committed even if an exception leaves the
// function: the other ranks then see an operation that fails, and none that is
// missing.
namespace gft {
namespace {

constexpr char kBroadcast[] = "gradientflow:broadcast";
constexpr char kAllgather[] = "gradientflow:all_gather";
constexpr char kAllgatherBase[] = "gradientflow:_all_gather_base";
constexpr char kAllgatherCoalesced[] = "gradientflow:all_gather_coalesced";
constexpr char kAllgatherInto[] =
    "gradientflow:all_gather_into_tensor_coalesced";
constexpr char kGather[] = "gradientflow:gather";
constexpr char kGatherInto[] = "gradientflow:gather_into_tensor";
constexpr char kScatter[] = "gradientflow:scatter";

gf_call CallOf(int32_t kind, const at::Tensor& part) {
  const Elements elements = ForMove(part);
  gf_call call;
  gf_call_init(&call);
  call.kind = kind;
  call.count = elements.count;
  call.dtype = elements.dtype;
  return call;
}

std::string Root(int64_t rank) { return c10::str("root ", rank); }

// From torch 2.14 on this option has a type of its own.
template <typename T>
constexpr T TypeOfAllgathers() {
  if constexpr (requires { T::ALLGATHER_INTO_TENSOR_COALESCED; }) {
    return T::ALLGATHER_INTO_TENSOR_COALESCED;
  } else {
    return T::ALLGATHER_COALESCED;
  }
}

void StartBroadcast(int rank, Work& work, const at::Tensor& tensor, int root) {
  gf_call call = CallOf(GF_BROADCAST, tensor);
  call.root = root;
  // The root's memory is only read.
  call.output = rank == root ? const_cast<void*>(work.lent().Read(tensor))
                             : work.lent().Write(tensor);
  work.Start(call);
}

void StartAllgather(Work& work, void* output, const at::Tensor& input) {
  gf_call call = CallOf(GF_ALLGATHER, input);
  call.input = work.lent().Read(input);
  call.output = output;
  work.Start(call);
}

// Gathers into parts that may differ in size.
void StartAllgather(const Operations& operations, Work& work,
                    const Tensors& outputs, const at::Tensor& input) {
  if (AreEqual(outputs)) {
    return StartAllgather(work, work.lent().WriteAll(outputs), input);
  }
  Lent::Assign(outputs[operations.rank()], input);
  for (int root = 0; root < operations.size(); ++root) {
    StartBroadcast(operations.rank(), work, outputs[root], root);
  }
}

void StartGather(int size, Work& work, void* output, const at::Tensor& input,
                 int root) {
  gf_call call = CallOf(GF_GATHER, input);
  const std::vector<size_t> counts(size, call.count);
  call.root = root;
  call.recv_counts = counts.data();
  call.input = work.lent().Read(input);
  call.output = output;
  work.Start(call);
}

}  // namespace

WorkPtr Broadcast(Operations& operations, Tensors& tensors,
                  const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = Only(kBroadcast, tensors);
  CheckDense(kBroadcast, tensor);
  CheckRoot(kBroadcast, opts.rootRank, operations.size());
  Making work(operations.Begin(
      {c10d::OpType::BROADCAST, kBroadcast, Root(opts.rootRank)}, opts.timeout,
      tensors, tensors));
  StartBroadcast(operations.rank(), *work, tensor,
                 static_cast<int>(opts.rootRank));
  return operations.Add(work.Commit());
}

WorkPtr Allgather(Operations& operations, std::vector<Tensors>& outputs,
                  Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = Only(kAllgather, inputs);
  CheckDense(kAllgather, input);
  TORCH_CHECK_VALUE(outputs.size() == 1, "GradientFlow: ", kAllgather, ": ",
                    outputs.size(), " lists of outputs, expected one");
  CheckOwnPart(kAllgather, outputs.front(), input, operations.rank(),
               operations.size());
  Making work(operations.Begin({c10d::OpType::ALLGATHER, kAllgather},
                               opts.timeout, inputs, outputs.front()));
  StartAllgather(operations, *work, outputs.front(), input);
  return operations.Add(work.Commit());
}

WorkPtr AllgatherBase(Operations& operations, at::Tensor& output,
                      at::Tensor& input, const c10d::AllgatherOptions& opts) {
  CheckWhole(kAllgatherBase, output, input, operations.size());
  Making work(operations.Begin({c10d::OpType::_ALLGATHER_BASE, kAllgatherBase},
                               opts.timeout, {input}, {output}));
  StartAllgather(*work, work->lent().Write(output), input);
  return operations.Add(work.Commit());
}

WorkPtr AllgatherCoalesced(Operations& operations,
                           std::vector<Tensors>& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& opts) {
  constexpr auto kWhat = kAllgatherCoalesced;
  TORCH_CHECK_VALUE(!inputs.empty(), "GradientFlow: ", kWhat,
                    ": requires a non-empty list of inputs");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(operations.size()),
                    "GradientFlow: ", kWhat, ": ", outputs.size(),
                    " lists of outputs, expected one for each of ",
                    operations.size(), " ranks");
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "GradientFlow: ", kWhat,
                      ": a list of ", list.size(), " outputs for ",
                      inputs.size(), " inputs");
  }
  std::vector<Tensors> parts(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const Tensors& list : outputs) parts[i].push_back(list[i]);
    CheckOwnPart(kWhat, parts[i], inputs[i], operations.rank(),
                 operations.size());
  }
  Making work(operations.Begin({c10d::OpType::ALLGATHER_COALESCED, kWhat},
                               opts.timeout, inputs, outputs.front()));
  work->results().SetLists(outputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    StartAllgather(operations, *work, parts[i], inputs[i]);
  }
  return operations.Add(work.Commit());
}

WorkPtr AllgatherIntoCoalesced(Operations& operations, Tensors& outputs,
                               Tensors& inputs,
                               const c10d::AllgatherOptions& opts) {
  constexpr auto kWhat = kAllgatherInto;
  CheckPairs(kWhat, outputs.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckWhole(kWhat, outputs[i], inputs[i], operations.size());
  }
  Making work(operations.Begin({TypeOfAllgathers<c10d::OpType>(), kWhat},
                               opts.timeout, inputs, outputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    StartAllgather(*work, work->lent().Write(outputs[i]), inputs[i]);
  }
  return operations.Add(work.Commit());
}

WorkPtr Gather(Operations& operations, std::vector<Tensors>& outputs,
               Tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor& input = Only(kGather, inputs);
  CheckDense(kGather, input);
  CheckRoot(kGather, opts.rootRank, operations.size());
  const bool root = operations.rank() == opts.rootRank;
  CheckRootList(kGather, outputs.size(), root);
  if (root) CheckParts(kGather, outputs.front(), input, operations.size());
  Making work(operations.Begin(
      {c10d::OpType::GATHER, kGather, Root(opts.rootRank)}, opts.timeout,
      inputs, root ? outputs.front() : Tensors()));
  StartGather(operations.size(), *work,
              root ? work->lent().WriteAll(outputs.front()) : nullptr, input,
              static_cast<int>(opts.rootRank));
  return operations.Add(work.Commit());
}

WorkPtr GatherInto(Operations& operations, at::Tensor& output,
                   at::Tensor& input, const c10d::GatherOptions& opts) {
  CheckRoot(kGatherInto, opts.rootRank, operations.size());
  const bool root = operations.rank() == opts.rootRank;
  if (root) CheckWhole(kGatherInto, output, input, operations.size());
  Making work(operations.Begin(
      {c10d::OpType::GATHER, kGatherInto, Root(opts.rootRank)}, opts.timeout,
      {input}, root ? Tensors{output} : Tensors()));
  StartGather(operations.size(), *work,
              root ? work->lent().Write(output) : nullptr, input,
              static_cast<int>(opts.rootRank));
  return operations.Add(work.Commit());
}

WorkPtr Scatter(Operations& operations, Tensors& outputs,
                std::vector<Tensors>& inputs,
                const c10d::ScatterOptions& opts) {
  const at::Tensor& output = Only(kScatter, outputs);
  CheckDense(kScatter, output);
  CheckRoot(kScatter, opts.rootRank, operations.size());
  const bool root = operations.rank() == opts.rootRank;
  CheckRootList(kScatter, inputs.size(), root);
  if (root) CheckParts(kScatter, inputs.front(), output, operations.size());
  Making work(operations.Begin(
      {c10d::OpType::SCATTER, kScatter, Root(opts.rootRank)}, opts.timeout,
      root ? inputs.front() : Tensors(), outputs));
  gf_call call = CallOf(GF_SCATTER, output);
  const std::vector<size_t> counts(operations.size(), call.count);
  call.root = static_cast<int32_t>(opts.rootRank);
  call.send_counts = counts.data();
  if (root) call.input = work->lent().ReadAll(inputs.front());
  call.output = work->lent().Write(output);
  work->Start(call);
  return operations.Add(work.Commit());
}

}  // namespace gft
