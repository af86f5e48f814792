#include "benchmarks/scaling/gemm_backward.h"

#include <utility>

namespace gradientflow::benchmarks {

double BackwardFlops(const ModelTensor& tensor, int batch) {
  return kBackwardPerForward * tensor.forward_flops * batch;
}

GemmBackward::GemmBackward(const GemmBackwardParts& parts) : parts_(parts) {
  for (const std::size_t i : parts.model->ReadyOrder()) {
    const ModelTensor& tensor = parts.model->tensors[i];
    pieces_.push_back(
        Piece{i, PlanGemms(BackwardFlops(tensor, parts.model->batch)),
              parts.offsets[i], tensor.elements * parts.element_bytes});
  }
}

Result<std::unique_ptr<GemmBackward>> GemmBackward::Create(
    const GemmBackwardParts& parts) {
  std::unique_ptr<GemmBackward> made(new GemmBackward(parts));
  GF_RETURN_IF_ERROR(parts.gpu->Reserve(parts.pool.bytes));
  Result<std::unique_ptr<Event>> event = parts.gpu->device().NewEvent();
  if (!event.ok()) return event.status();
  made->event_ = std::move(event).value();
  return made;
}

Status GemmBackward::Prepare(std::uint64_t step) {
  Gpu& gpu = *parts_.gpu;
  const std::size_t bytes = parts_.pool.bytes;
  parts_.gradients->Fill(parts_.rank, step, {gpu.host(), bytes, {}});
  GF_RETURN_IF_ERROR(gpu.stream().Copy(gpu.prepared(), gpu.host(), bytes));
  return gpu.stream().Synchronize();
}

Status GemmBackward::Run(Clock::Time begin,
                         const std::function<void(std::size_t)>& ready) {
  Gpu& gpu = *parts_.gpu;
  parts_.waiter->Until(begin);
  for (const Piece& piece : pieces_) {
    for (const Gemm& gemm : piece.gemms) {
      GF_RETURN_IF_ERROR(gpu.Multiply(gemm));
    }
    GF_RETURN_IF_ERROR(gpu.stream().Copy(parts_.pool.data + piece.offset,
                                         gpu.prepared() + piece.offset,
                                         piece.bytes));
    ready(piece.tensor);
  }
  GF_RETURN_IF_ERROR(gpu.stream().Record(event_.get()));
  // On a thread of its own: this one is about to wait for communication.
  end_ = std::async(std::launch::async, [this]() -> Result<Clock::Time> {
    GF_RETURN_IF_ERROR(event_->Synchronize());
    return SteadyClock().Now();
  });
  return Status();
}

Result<Clock::Time> GemmBackward::End() {
  if (!end_.valid()) {
    return Status(StatusCode::kFailedPrecondition, "no backward has run");
  }
  return end_.get();
}

Result<ConstBufferView> GemmBackward::Read() {
  Gpu& gpu = *parts_.gpu;
  GF_RETURN_IF_ERROR(
      gpu.stream().Copy(gpu.host(), parts_.pool.data, parts_.pool.bytes));
  GF_RETURN_IF_ERROR(gpu.stream().Synchronize());
  return ConstBufferView{gpu.host(), parts_.pool.bytes, {}};
}

}  // namespace gradientflow::benchmarks
