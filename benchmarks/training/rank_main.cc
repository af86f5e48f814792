// One rank of data-parallel training on real data: a small network learns
// handwritten digits, with gradients exchanged as the job says. Per step:
//
//   this rank's share of the batch -> Network::Backward() writes into the pool
//   -> GradientReady() -> FinishStep() -> OptimizerStep()
//
// Job: {"data": file, "settings": how gradients travel, "recipe": {...},
// "seeds": number}. Answer: per seed loss, accuracy, bytes and seconds.
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "benchmarks/random.h"
#include "benchmarks/rank.h"
#include "benchmarks/training/digits.h"
#include "benchmarks/training/network.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {
namespace {

constexpr std::uint64_t kSplitSeed = 1998;

// What is the same for every way to exchange gradients.
struct Recipe {
  explicit Recipe(const Json& json)
      : hidden(json.at("hidden").get<std::vector<std::size_t>>()),
        epochs(json.at("epochs")),
        batch(json.at("batch")),
        lr(json.at("lr")),
        momentum(json.at("momentum")) {}

  std::vector<std::size_t> hidden;
  std::size_t epochs;
  std::size_t batch;  // Over all ranks.
  float lr;           // Falls linearly to 0.
  float momentum;
};

// Trains one network; holds everything that lives for one run.
class Trainer {
 public:
  Trainer(const Json& job, const Split& split, std::uint64_t seed)
      : job_(job),
        recipe_(job.at("recipe")),
        split_(split),
        order_(seed),
        network_(Widths(recipe_), seed ^ 0x5eed) {}

  Result<Json> Run(const Options& options);

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

  Status Open(const Options& options);
  // Copies this rank's samples of a batch, given by positions in order.
  void Gather(const std::size_t* samples);
  Status Step(std::size_t step, const std::size_t* samples);

  const Json& job_;
  const Recipe recipe_;
  const Split& split_;
  Random order_;
  Network<float> network_;
  std::vector<float*> weights_;
  std::unique_ptr<GradientSession> session_;
  std::vector<float> pixels_;
  std::vector<int> labels_;
  std::uint64_t bytes_sent_ = 0;
};

Status Trainer::Open(const Options& options) {
  std::vector<TensorSpec> specs;
  for (auto& tensor : network_.tensors()) {
    specs.push_back(TensorSpec{tensor.name, tensor.values.size()});
    weights_.push_back(tensor.values.data());
  }
  auto opened = OpenSession(options, job_.at("settings"), specs);
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
  // With this scale the mean over the ranks is the mean over the batch, even if
  // the ranks' shares of it differ by one sample.
  const float scale = session_->options().loss_scale *
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
  OptimizerOptions sgd;
  sgd.lr =
      recipe_.lr * (1 - static_cast<float>(step) / static_cast<float>(Steps()));
  sgd.momentum = recipe_.momentum;
  return session_->OptimizerStep(sgd, weights_);
}

Result<Json> Trainer::Run(const Options& options) {
  GF_RETURN_IF_ERROR(Open(options));
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t step = 0; step < Steps();) {
    const auto order = order_.Permutation(split_.train.count());
    for (std::size_t i = 0; i < StepsPerEpoch(); ++i, ++step) {
      GF_RETURN_IF_ERROR(Step(step, order.data() + i * recipe_.batch));
    }
  }
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  std::uint64_t hash = kHashSeed;
  for (const auto& tensor : network_.tensors()) {
    hash = HashBytes(hash, tensor.values.data(),
                     tensor.values.size() * sizeof(float));
  }
  GF_RETURN_IF_ERROR(ExpectSame(*session_, hash));
  const Digits& train = split_.train;
  const double loss = network_.Forward(train.pixels, train.labels);
  network_.Forward(split_.test.pixels, split_.test.labels);
  return Json{{"train_loss", loss / static_cast<double>(train.count())},
              {"test_accuracy", static_cast<double>(network_.correct()) /
                                    static_cast<double>(split_.test.count())},
              {"bytes_per_step",
               static_cast<double>(bytes_sent_) / static_cast<double>(Steps())},
              {"seconds", taken.count()}};
}

Result<Json> RankMain(const Json& job, const Options& options) {
  const auto digits = LoadDigits(job.at("data"));
  if (!digits.ok()) return digits.status();
  const Split split = SplitDigits(digits.value(), kSplitSeed);
  Json results = Json::array();
  for (int seed = 1; seed <= job.at("seeds").get<int>(); ++seed) {
    Options one = options;
    one.job_token = StrCat("training ", seed);
    const auto result =
        Trainer(job, split, static_cast<std::uint64_t>(seed)).Run(one);
    if (!result.ok()) return result.status();
    results.push_back(result.value());
  }
  return results;
}

}  // namespace
}  // namespace gradientflow::benchmarks

int main(int argc, char** argv) {
  using namespace gradientflow::benchmarks;  // NOLINT: a main().
  return RunRank(argc, argv, &RankMain);
}
