#include "backend_sparse.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>

// The sum of sparse tensors: every rank gathers the elements of all ranks, and
// adds them up.
namespace gft {
namespace {

constexpr char kSparse[] = "gradientflow:sparse_all_reduce";

// The state of one operation.
struct Sum {
  at::Tensor result;  // Belongs to the caller.
  at::Tensor mine;    // Coalesced, on the host.
  at::Tensor counts;  // Non-zero elements of each rank.
  at::Tensor indices;
  at::Tensor values;
  int size = 0;
};

gf_call AllgatherOf(Work& work, const at::Tensor& input, at::Tensor& output,
                    int size) {
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), size);
  output = at::empty(sizes, input.options());
  const Elements elements = ForMove(input);
  gf_call call;
  gf_call_init(&call);
  call.kind = GF_ALLGATHER;
  call.count = elements.count;
  call.dtype = elements.dtype;
  call.input = work.lent().Read(input);
  call.output = work.lent().Write(output);
  return call;
}

// `tensor`, padded with zeros to `rows` rows.
at::Tensor Padded(const at::Tensor& tensor, int64_t rows) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.front() = rows;
  at::Tensor padded = at::zeros(sizes, tensor.options());
  padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return padded;
}

void AddUp(const Sum& sum) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (int rank = 0; rank < sum.size; ++rank) {
    const int64_t count = sum.counts[rank][0].item<int64_t>();
    indices.push_back(sum.indices[rank].narrow(0, 0, count));
    values.push_back(sum.values[rank].narrow(0, 0, count));
  }
  sum.result.copy_(at::sparse_coo_tensor(at::cat(indices).t(), at::cat(values),
                                         sum.mine.sizes(), sum.mine.options())
                       .coalesce());
}

// Runs once the counts of all ranks are known. Each rank sends as many rows as
// the rank with the most has.
void GatherElements(Work& work, const std::shared_ptr<Sum>& sum) {
  const int64_t rows = sum->counts.max().item<int64_t>();
  if (rows == 0) {
    sum->result.copy_(sum->mine);
    return;
  }
  const at::Tensor indices = Padded(sum->mine.indices().t(), rows);
  const at::Tensor values = Padded(sum->mine.values(), rows);
  work.Then([sum](Work&) { AddUp(*sum); });
  work.Start(AllgatherOf(work, indices, sum->indices, sum->size));
  work.Start(AllgatherOf(work, values, sum->values, sum->size));
}

}  // namespace

WorkPtr AllreduceSparse(Operations& operations, Tensors& tensors,
                        const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors.front().is_sparse(),
                    "GradientFlow: ", kSparse,
                    ": expected one tensor of layout Sparse");
  TORCH_CHECK_VALUE(opts.reduceOp == c10d::ReduceOp::SUM,
                    "GradientFlow: ", kSparse, ": ReduceOp.",
                    NameOf(opts.reduceOp), " is not supported, expected SUM");
  const at::NoGradGuard no_grad;
  const auto sum = std::make_shared<Sum>();
  sum->result = tensors.front();
  sum->mine = tensors.front().detach().coalesce().cpu();
  sum->size = operations.size();
  const Operations::Kind kind{c10d::OpType::_ALLREDUCE_SPARSE, kSparse};
  const at::Tensor count = at::full({1}, sum->mine._nnz(), at::kLong);
  Making counting(operations.Begin(kind, opts.timeout, {}, {}, false));
  counting->Start(
      AllgatherOf(*counting, count, sum->counts, operations.size()));
  // The caller's thread waits for the counts and starts the second gather. The
  // thread that drives must not: it could come before or after this rank's next
  // call, so that the order of calls would differ between ranks.
  counting.Commit()->wait();
  Making work(operations.Begin(kind, opts.timeout, tensors, tensors));
  GatherElements(*work, sum);
  return operations.Add(work.Commit());
}

}  // namespace gft
