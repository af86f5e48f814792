#include "backend_reduce.h"

#include <c10/util/Exception.h>

#include "backend_checks.h"
#include "backend_sparse.h"
#include "library.h"

// Operations that combine the elements of several ranks. Each takes the way
// that backend_move.cc shows. Two things are added: ForReduce() finds the
// library's type and operation, or throws, and Premultiplied() multiplies the
// input by the factor of a PREMUL_SUM, in a copy, since the library only sums.
namespace gft {
namespace {

constexpr char kAllreduce[] = "gradientflow:all_reduce";
constexpr char kAllreduceCoalesced[] = "gradientflow:all_reduce_coalesced";
constexpr char kReduce[] = "gradientflow:reduce";
constexpr char kReduceScatter[] = "gradientflow:reduce_scatter";
constexpr char kReduceScatterBase[] = "gradientflow:_reduce_scatter_base";
constexpr char kReduceScatterCoalesced[] =
    "gradientflow:reduce_scatter_tensor_coalesced";

// From torch 2.13 on this operation has a type of its own.
template <typename T>
constexpr T TypeOfReduceScatters() {
  if constexpr (requires { T::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return T::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return T::_REDUCE_SCATTER_BASE;
  }
}

gf_call CallOf(int32_t kind, const Elements& elements) {
  gf_call call;
  gf_call_init(&call);
  call.kind = kind;
  call.count = elements.count;
  call.dtype = elements.dtype;
  call.op = elements.op;
  return call;
}

void StartAllreduce(Work& work, const char* what, const at::Tensor& tensor,
                    const c10d::ReduceOp& op, int32_t wire = -1) {
  CheckDense(what, tensor);
  gf_call call = CallOf(GF_ALLREDUCE, ForReduce(what, tensor, op));
  call.wire_dtype = wire;
  work.lent().Assign(tensor, Premultiplied(tensor, op));
  call.output = work.lent().ReadWrite(tensor);
  work.Start(call);
}

// `output` is null except on the root; it may be `input`.
void StartReduce(Work& work, const char* what, const at::Tensor& input,
                 const at::Tensor* output, const c10d::ReduceOp& op, int root) {
  gf_call call = CallOf(GF_REDUCE, ForReduce(what, input, op));
  call.root = root;
  const at::Tensor mine = Premultiplied(input, op);
  if (output != nullptr && mine.is_same(*output)) {
    call.output = work.lent().ReadWrite(*output);
    call.input = call.output;
  } else {
    call.input = work.lent().Read(mine);
    if (output != nullptr) call.output = work.lent().Write(*output);
  }
  work.Start(call);
}

void StartReduceScatter(Work& work, const char* what, const at::Tensor& output,
                        const void* input, const c10d::ReduceOp& op) {
  gf_call call = CallOf(GF_REDUCE_SCATTER, ForReduce(what, output, op));
  call.input = input;
  call.output = work.lent().Write(output);
  work.Start(call);
}

}  // namespace

WorkPtr Allreduce(Operations& operations, Tensors& tensors,
                  const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = Only(kAllreduce, tensors);
  if (tensor.is_sparse()) return AllreduceSparse(operations, tensors, opts);
  Making work(operations.Begin(
      {c10d::OpType::ALLREDUCE, kAllreduce, NameOf(opts.reduceOp)},
      opts.timeout, tensors, tensors));
  StartAllreduce(*work, kAllreduce, tensor, opts.reduceOp);
  return operations.Add(work.Commit());
}

WorkPtr AllreduceVia(Operations& operations, at::ScalarType wire,
                     const at::Tensor& tensor, const c10d::ReduceOp& op) {
  const auto dtype = DtypeOf(wire);
  TORCH_CHECK_VALUE(dtype, "GradientFlow: ", kAllreduce, ": no wire type ",
                    wire);
  Making work(operations.Begin(
      {c10d::OpType::ALLREDUCE, kAllreduce, c10::str(NameOf(op), " in ", wire)},
      kNoTimeout, {tensor}, {tensor}));
  StartAllreduce(*work, kAllreduce, tensor, op, *dtype);
  return operations.Add(work.Commit());
}

WorkPtr AllreduceCoalesced(Operations& operations, Tensors& tensors,
                           const c10d::AllreduceCoalescedOptions& opts) {
  TORCH_CHECK_VALUE(!tensors.empty(), "GradientFlow: ", kAllreduceCoalesced,
                    ": requires a non-empty list of tensors");
  Making work(operations.Begin({c10d::OpType::ALLREDUCE_COALESCED,
                                kAllreduceCoalesced, NameOf(opts.reduceOp)},
                               opts.timeout, tensors, tensors));
  for (const at::Tensor& tensor : tensors) {
    StartAllreduce(*work, kAllreduceCoalesced, tensor, opts.reduceOp);
  }
  return operations.Add(work.Commit());
}

WorkPtr Reduce(Operations& operations, Tensors& tensors,
               const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = Only(kReduce, tensors);
  CheckDense(kReduce, tensor);
  CheckRoot(kReduce, opts.rootRank, operations.size());
  Making work(operations.Begin(
      {c10d::OpType::REDUCE, kReduce,
       c10::str(NameOf(opts.reduceOp), ", root ", opts.rootRank)},
      opts.timeout, tensors, tensors));
  const bool root = operations.rank() == opts.rootRank;
  StartReduce(*work, kReduce, tensor, root ? &tensor : nullptr, opts.reduceOp,
              static_cast<int>(opts.rootRank));
  return operations.Add(work.Commit());
}

WorkPtr ReduceScatter(Operations& operations, Tensors& outputs,
                      std::vector<Tensors>& inputs,
                      const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = Only(kReduceScatter, outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, "GradientFlow: ", kReduceScatter, ": ",
                    inputs.size(), " lists of inputs, expected one");
  const Tensors& parts = inputs.front();
  CheckOwnPart(kReduceScatter, parts, output, operations.rank(),
               operations.size());
  Making work(operations.Begin(
      {c10d::OpType::REDUCE_SCATTER, kReduceScatter, NameOf(opts.reduceOp)},
      opts.timeout, parts, outputs));
  if (!AreEqual(parts)) {
    for (int root = 0; root < operations.size(); ++root) {
      StartReduce(*work, kReduceScatter, parts[root],
                  root == operations.rank() ? &output : nullptr, opts.reduceOp,
                  root);
    }
    return operations.Add(work.Commit());
  }
  Tensors mine;
  for (const at::Tensor& part : parts) {
    mine.push_back(Premultiplied(part, opts.reduceOp));
  }
  StartReduceScatter(*work, kReduceScatter, output, work->lent().ReadAll(mine),
                     opts.reduceOp);
  return operations.Add(work.Commit());
}

WorkPtr ReduceScatterBase(Operations& operations, at::Tensor& output,
                          at::Tensor& input,
                          const c10d::ReduceScatterOptions& opts) {
  CheckWhole(kReduceScatterBase, input, output, operations.size());
  Making work(operations.Begin({c10d::OpType::_REDUCE_SCATTER_BASE,
                                kReduceScatterBase, NameOf(opts.reduceOp)},
                               opts.timeout, {input}, {output}));
  const void* data = work->lent().Read(Premultiplied(input, opts.reduceOp));
  StartReduceScatter(*work, kReduceScatterBase, output, data, opts.reduceOp);
  return operations.Add(work.Commit());
}

WorkPtr ReduceScatterCoalesced(Operations& operations, Tensors& outputs,
                               Tensors& inputs,
                               const c10d::ReduceScatterOptions& opts) {
  constexpr auto kWhat = kReduceScatterCoalesced;
  CheckPairs(kWhat, outputs.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckWhole(kWhat, inputs[i], outputs[i], operations.size());
  }
  Making work(operations.Begin(
      {TypeOfReduceScatters<c10d::OpType>(), kWhat, NameOf(opts.reduceOp)},
      opts.timeout, inputs, outputs));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const void* data =
        work->lent().Read(Premultiplied(inputs[i], opts.reduceOp));
    StartReduceScatter(*work, kWhat, outputs[i], data, opts.reduceOp);
  }
  return operations.Add(work.Commit());
}

}  // namespace gft
