#include "backend_messages.h"

#include <c10/util/Exception.h>

// Messages between ranks, and the plain barrier.
namespace gft {
namespace {

constexpr char kSend[] = "gradientflow:send";
constexpr char kReceive[] = "gradientflow:recv";
constexpr char kReceiveAny[] = "gradientflow:recv_any_source";
constexpr char kBarrier[] = "gradientflow:barrier";

const at::Tensor& Checked(const char* what,
                          const std::vector<at::Tensor>& tensors, int tag) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "GradientFlow: ", what, ": ",
                    tensors.size(), " tensors, expected one");
  const at::Tensor& tensor = tensors.front();
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "GradientFlow: ", what,
                    ": only supports dense tensors");
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "GradientFlow: ", what,
                    ": tensors must be contiguous");
  TORCH_CHECK_VALUE(tag >= 0, "GradientFlow: ", what, ": tag ", tag,
                    ", expected 0 or more");
  return tensor;
}

WorkPtr ReceiveAs(Operations& operations, Tensors& tensors,
                  const Operations::Kind& kind, int peer, int tag) {
  const at::Tensor& tensor = Checked(kind.title, tensors, tag);
  Making work(operations.Begin(kind, kNoTimeout, tensors, tensors, false));
  void* data = work->lent().Write(tensor);
  work->Receive(data, tensor.nbytes(), peer, tag);
  return operations.Add(work.Commit());
}

}  // namespace

WorkPtr Send(Operations& operations, Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = Checked(kSend, tensors, tag);
  Making work(
      operations.Begin({c10d::OpType::SEND, kSend, c10::str("to rank ", peer)},
                       kNoTimeout, tensors, tensors, false));
  const void* data = work->lent().Read(tensor);
  work->Send(data, tensor.nbytes(), peer, tag);
  return operations.Add(work.Commit());
}

WorkPtr Receive(Operations& operations, Tensors& tensors, int peer, int tag) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < operations.size(),
                    "GradientFlow: ", kReceive, " from rank ", peer, " of ",
                    operations.size());
  return ReceiveAs(operations, tensors,
                   {c10d::OpType::RECV, kReceive, c10::str("from rank ", peer)},
                   peer, tag);
}

WorkPtr ReceiveFromAny(Operations& operations, Tensors& tensors, int tag) {
  return ReceiveAs(operations, tensors,
                   {c10d::OpType::RECVANYSOURCE, kReceiveAny}, GF_ANY_RANK,
                   tag);
}

WorkPtr Barrier(Operations& operations, const c10d::BarrierOptions& opts) {
  Making work(operations.Begin({c10d::OpType::BARRIER, kBarrier}, opts.timeout,
                               {}, {}));
  gf_call call;
  gf_call_init(&call);
  call.kind = GF_BARRIER;
  work->Start(call);
  return operations.Add(work.Commit());
}

}  // namespace gft
