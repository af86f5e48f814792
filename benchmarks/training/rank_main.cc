// One rank of data-parallel training on real data: a small network learns
// handwritten digits, with gradients exchanged as the job says. Per step:
//
//   this rank's share of the batch -> Network::Backward() writes into the pool
//   -> GradientReady() -> FinishStep() -> OptimizerStep()
//
// Job: {"data": file, "settings": how gradients travel, "recipe": {...},
// "seeds": number}. Answer: per seed loss, accuracy, bytes and seconds.
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "benchmarks/lib/random.h"
#include "benchmarks/lib/rank.h"
#include "benchmarks/training/digits.h"
#include "benchmarks/training/network.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::benchmarks {

// What is the same for every way to exchange gradients.
struct Recipe {
  std::vector<std::size_t> widths;  // Of the network: inputs to classes.
  std::size_t epochs = 0;
  std::size_t batch = 0;  // Over all ranks.
  float lr = 0;           // Falls linearly to 0.
  float momentum = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Recipe, widths, epochs, batch, lr, momentum)

namespace {

constexpr std::uint64_t kSplitSeed = 1998;

// Trains one network; holds everything that lives for one run.
class Trainer {
 public:
  Trainer(const Json& job, const Split& split, std::uint64_t seed,
          const Options& options)
      : recipe_(job.at("recipe")),
        split_(split),
        order_(seed),
        network_(recipe_.widths, seed ^ 0x5eed) {
    std::vector<TensorSpec> specs;
    for (auto& tensor : network_.tensors()) {
      specs.push_back(TensorSpec{tensor.name, tensor.values.size()});
      weights_.push_back(tensor.values.data());
    }
    session_ = OpenSession(options, job.at("settings"), specs);
  }

  Json Run();

 private:
  // Whole batches only.
  std::size_t StepsPerEpoch() const {
    return split_.train.count() / recipe_.batch;
  }
  std::size_t Steps() const { return recipe_.epochs * StepsPerEpoch(); }

  // `samples` are the batch's: positions in the training set.
  void Step(std::size_t step, const std::size_t* samples);
  Status CheckSameWeights();

  const Recipe recipe_;
  const Split& split_;
  Random order_;
  Network<float> network_;
  std::vector<float*> weights_;
  std::unique_ptr<GradientSession> session_;
  std::uint64_t bytes_sent_ = 0;
};

void Trainer::Step(std::size_t step, const std::size_t* samples) {
  Digits share;  // This rank's.
  for (auto i = static_cast<std::size_t>(session_->rank()); i < recipe_.batch;
       i += static_cast<std::size_t>(session_->size())) {
    share.Append(split_.train, samples[i]);
  }
  network_.Forward(share.pixels, share.labels);
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
  bytes_sent_ += Must(session_->FinishStep()).bytes_sent;
  OptimizerOptions sgd;
  sgd.lr =
      recipe_.lr * (1 - static_cast<float>(step) / static_cast<float>(Steps()));
  sgd.momentum = recipe_.momentum;
  Must(session_->OptimizerStep(sgd, weights_));
}

Status Trainer::CheckSameWeights() {
  std::uint64_t hash = 0;
  for (const auto& [name, values] : network_.tensors()) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                 values.size() * sizeof(float));
    hash = 31 * hash + std::hash<std::string_view>()(bytes);
  }
  return ExpectSame(session_->communicator(), hash);
}

Json Trainer::Run() {
  const Clock::Time begin = SteadyClock().Now();
  for (std::size_t step = 0; step < Steps();) {
    const auto order = order_.Permutation(split_.train.count());
    for (std::size_t i = 0; i < StepsPerEpoch(); ++i, ++step) {
      Step(step, order.data() + i * recipe_.batch);
    }
  }
  const double seconds = Seconds(SteadyClock().Now() - begin);
  Must(CheckSameWeights());
  const auto& [train, test] = split_;
  const double loss = network_.Forward(train.pixels, train.labels);
  network_.Forward(test.pixels, test.labels);
  return {{"train_loss", loss / static_cast<double>(train.count())},
          {"test_accuracy", static_cast<double>(network_.correct()) /
                                static_cast<double>(test.count())},
          {"bytes_per_step",
           static_cast<double>(bytes_sent_) / static_cast<double>(Steps())},
          {"seconds", seconds}};
}

}  // namespace

Json RankMain(const Json& job, const Options& options) {
  const Split split = SplitDigits(LoadDigits(job.at("data")), kSplitSeed);
  Json results = Json::array();
  for (std::uint64_t seed = 1; seed <= job.at("seeds"); ++seed) {
    Options own = options;
    own.job_token = StrCat("training ", seed);
    results.push_back(Trainer(job, split, seed, own).Run());
  }
  return results;
}

}  // namespace gradientflow::benchmarks
