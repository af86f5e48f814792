#include <c10/util/Exception.h>

#include "backend.h"

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

}  // namespace

Backend::WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = Checked(kSend, tensors, tag);
  Making work(Begin({c10d::OpType::SEND, kSend, c10::str("to rank ", peer)},
                    kNoTimeout, tensors, tensors, false));
  const void* data = work->lent().Read(tensor);
  work->Send(data, tensor.nbytes(), peer, tag);
  return Add(work.Commit());
}

Backend::WorkPtr Backend::Receive(Tensors& tensors, const Kind& kind, int peer,
                                  int tag) {
  const at::Tensor& tensor = Checked(kind.title, tensors, tag);
  Making work(Begin(kind, kNoTimeout, tensors, tensors, false));
  void* data = work->lent().Write(tensor);
  work->Receive(data, tensor.nbytes(), peer, tag);
  return Add(work.Commit());
}

Backend::WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_, "GradientFlow: ", kReceive,
                    " from rank ", peer, " of ", size_);
  return Receive(tensors,
                 {c10d::OpType::RECV, kReceive, c10::str("from rank ", peer)},
                 peer, tag);
}

Backend::WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return Receive(tensors, {c10d::OpType::RECVANYSOURCE, kReceiveAny},
                 GF_ANY_RANK, tag);
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& opts) {
  Making work(Begin({c10d::OpType::BARRIER, kBarrier}, opts.timeout, {}, {}));
  gf_call call;
  gf_call_init(&call);
  call.kind = GF_BARRIER;
  work->Start(call);
  return Add(work.Commit());
}

}  // namespace gft
