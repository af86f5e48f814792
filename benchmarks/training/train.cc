#include "benchmarks/training/train.h"

#include <chrono>
#include <memory>
#include <utility>

#include "benchmarks/random.h"
#include "benchmarks/training/network.h"
#include "gradientflow/session.h"

namespace gradientflow::benchmarks {
namespace {

// FNV-1a over the bits.
std::int64_t Hash(std::vector<Network<float>::Tensor>& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const auto& tensor : tensors) {
    const auto* const bytes =
        reinterpret_cast<const unsigned char*>(tensor.values.data());
    for (std::size_t i = 0; i < tensor.values.size() * sizeof(float); ++i) {
      hash = (hash ^ bytes[i]) * 0x100000001b3;
    }
  }
  return static_cast<std::int64_t>(hash);
}

Result<bool> SameEverywhere(GradientSession& session, std::int64_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(session.size()));
  CollectiveCall call;
  call.kind = CollectiveKind::kAllgather;
  call.input = &mine;
  call.output = all.data();
  call.count = 1;
  call.dtype = call.wire = DType::kInt64;
  GF_RETURN_IF_ERROR(session.communicator().Run(call));
  for (const std::int64_t hash : all) {
    if (hash != mine) return false;
  }
  return true;
}

// Trains one network; all that lives for one run.
class Trainer {
 public:
  Trainer(const Exchange& exchange, const Recipe& recipe, const Split& split,
          std::uint64_t seed)
      : exchange_(exchange),
        recipe_(recipe),
        split_(split),
        order_(seed),
        network_(Widths(recipe), seed ^ 0x5eed) {}

  Result<TrainingResult> Run(Options options);

 private:
  static std::vector<std::size_t> Widths(const Recipe& recipe) {
    std::vector<std::size_t> widths = {kPixels};
    widths.insert(widths.end(), recipe.hidden.begin(), recipe.hidden.end());
    widths.push_back(kClasses);
    return widths;
  }
  // Whole batches only.
  std::size_t StepsPerEpoch() const {
    return split_.train.count() / recipe_.batch;
  }
  std::size_t Steps() const { return recipe_.epochs * StepsPerEpoch(); }

  Status Open(Options options);
  // Copies this rank's samples of a batch, given by positions in order.
  void Gather(const std::size_t* samples);
  Status Step(std::size_t step, const std::size_t* samples);

  const Exchange& exchange_;
  const Recipe& recipe_;
  const Split& split_;
  Random order_;
  Network<float> network_;
  std::vector<float*> weights_;
  std::unique_ptr<GradientSession> session_;
  std::vector<float> pixels_;
  std::vector<int> labels_;
  std::uint64_t bytes_sent_ = 0;
};

Status Trainer::Open(Options options) {
  options.wire_dtype = exchange_.wire;
  options.sparsity = exchange_.sparsity;
  options.loss_scale = exchange_.loss_scale;
  options.chunk_elements = recipe_.chunk_elements;
  options.warmup_steps =
      static_cast<std::uint64_t>(recipe_.warmup * static_cast<double>(Steps()));
  options.momentum = recipe_.momentum;
  std::vector<TensorSpec> specs;
  for (auto& tensor : network_.tensors()) {
    specs.push_back(TensorSpec{tensor.name, tensor.values.size(), false});
    weights_.push_back(tensor.values.data());
  }
  auto opened = GradientSession::Open(options, specs);
  if (!opened.ok()) return opened.status();
  session_ = std::move(opened).value();
  return Status();
}

void Trainer::Gather(const std::size_t* samples) {
  const auto rank = static_cast<std::size_t>(session_->rank());
  const auto size = static_cast<std::size_t>(session_->size());
  pixels_.clear();
  labels_.clear();
  for (std::size_t i = rank; i < recipe_.batch; i += size) {
    const float* const image =
        split_.train.pixels.data() + samples[i] * kPixels;
    pixels_.insert(pixels_.end(), image, image + kPixels);
    labels_.push_back(split_.train.labels[samples[i]]);
  }
}

Status Trainer::Step(std::size_t step, const std::size_t* samples) {
  Gather(samples);
  network_.Forward(pixels_, labels_);
  // The mean over the ranks of these is the mean over the batch, also where
  // the ranks' shares of it differ by one.
  const float scale = exchange_.loss_scale *
                      static_cast<float>(session_->size()) /
                      static_cast<float>(recipe_.batch);
  network_.Backward(
      scale,
      [&](std::size_t i) {
        return reinterpret_cast<float*>(session_->gradient(i).data);
      },
      [&](std::size_t i) { session_->GradientReady(i); });
  const Result<StepStats> stats = session_->FinishStep();
  if (!stats.ok()) return stats.status();
  bytes_sent_ += stats.value().bytes_sent;
  OptimizerConfig sgd;
  sgd.lr =
      recipe_.lr * (1 - static_cast<float>(step) / static_cast<float>(Steps()));
  sgd.momentum = recipe_.momentum;
  sgd.weight_decay = recipe_.weight_decay;
  return session_->OptimizerStep(sgd, weights_);
}

Result<TrainingResult> Trainer::Run(Options options) {
  GF_RETURN_IF_ERROR(Open(std::move(options)));
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t step = 0; step < Steps();) {
    const auto order = order_.Permutation(split_.train.count());
    for (std::size_t i = 0; i < StepsPerEpoch(); ++i, ++step) {
      GF_RETURN_IF_ERROR(Step(step, order.data() + i * recipe_.batch));
    }
  }
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  const Result<bool> identical =
      SameEverywhere(*session_, Hash(network_.tensors()));
  if (!identical.ok()) return identical.status();

  TrainingResult result;
  result.seconds = taken.count();
  result.identical = identical.value();
  result.bytes_per_step =
      static_cast<double>(bytes_sent_) / static_cast<double>(Steps());
  const Digits& train = split_.train;
  result.train_loss = network_.Forward(train.pixels, train.labels) /
                      static_cast<double>(train.count());
  network_.Forward(split_.test.pixels, split_.test.labels);
  result.test_accuracy = static_cast<double>(network_.correct()) /
                         static_cast<double>(split_.test.count());
  return result;
}

}  // namespace

Result<TrainingResult> Train(Options options, const Exchange& exchange,
                             const Recipe& recipe, const Split& split,
                             std::uint64_t seed) {
  if (recipe.batch == 0 || recipe.batch > split.train.count()) {
    return Status(StatusCode::kInvalidArgument,
                  "batch: expected 1 to the number of training samples");
  }
  return Trainer(exchange, recipe, split, seed).Run(std::move(options));
}

}  // namespace gradientflow::benchmarks
