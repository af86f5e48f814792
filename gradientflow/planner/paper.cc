#include "gradientflow/planner/paper.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "gradientflow/base/quantile.h"

// A fold fits the shared constants to some cells of the paper and predicts
// others:
//
//   cells to fit ─ PaperModel::Fit() ─> constants ─ ImagesPerSecond() of the
//   cells to predict ─> errors ─> median and worst, beside those that were
//   recorded
namespace gradientflow::planner {
namespace {

using Cells = std::vector<PaperCell>;
using Keep = std::function<bool(const PaperCell&)>;

Cells Where(const Cells& cells, const Keep& keep) {
  Cells kept;
  std::copy_if(cells.begin(), cells.end(), std::back_inserter(kept), keep);
  return kept;
}

std::vector<double> Sizes(const std::vector<PredictedCell>& cells) {
  std::vector<double> sizes;
  for (const PredictedCell& cell : cells) {
    sizes.push_back(std::abs(cell.error));
  }
  return sizes;
}

// `all_` has cluster V's cells from 16 GPUs on, without those in float32.
// `cells24_` are those of 128 and 512 GPUs, which most folds predict.
class Folds {
 public:
  explicit Folds(const PaperModel& model)
      : model_(model),
        all_(Where(model.data().cells,
                   [](const PaperCell& c) {
                     return c.cluster == 'V' && c.ranks >= 16 &&
                            c.setup != PaperSetup::kFloat32;
                   })),
        cells24_(Where(all_, [](const PaperCell& c) {
          return c.ranks == 128 || c.ranks == 512;
        })) {
    report_.constants = model_.Fit(cells24_, {});
    report_.all_constants = model_.Fit(all_, report_.constants);
  }

  PaperReport Run() {
    Fold same = Begin("all 24", "the same 24", 0.0241, 0.0602);
    Predict(cells24_, report_.constants, &same);
    End(std::move(same));
    LeaveOut("five configurations", "the sixth, in turn", 0.0281, 0.0693,
             [](const PaperCell& a, const PaperCell& b) {
               return a.setup == b.setup;
             });
    LeaveOut("23 cells", "the 24th, in turn", 0.0349, 0.0676,
             [](const PaperCell& a, const PaperCell& b) {
               return a.network == b.network && a.ranks == b.ranks &&
                      a.setup == b.setup;
             });
    LeaveOut("three of (network, N)", "the fourth, in turn", 0.0391, 0.0898,
             [](const PaperCell& a, const PaperCell& b) {
               return a.network == b.network && a.ranks == b.ranks;
             });
    OtherNetwork("alexnet", "resnet50", 0.0477, 0.1129);
    OtherNetwork("resnet50", "alexnet", 0.0349, 0.0949);
    FewRanks();
    Float32();
    ClusterP("resnet50", 0.0356, 0.0682);
    ClusterP("alexnet", 0.0761, 0.2276);
    report_.elsewhere_error_80 = Quantile(elsewhere_, 0.8);
    return std::move(report_);
  }

 private:
  static Fold Begin(std::string fitted_to, std::string predicted, double median,
                    double worst) {
    Fold fold;
    fold.fitted_to = std::move(fitted_to);
    fold.predicted = std::move(predicted);
    fold.recorded_median = median;
    fold.recorded_worst = worst;
    return fold;
  }

  void Predict(const Cells& cells, const SharedConstants& constants,
               Fold* fold) const {
    for (const PaperCell& cell : cells) {
      const double images = model_.ImagesPerSecond(cell, constants);
      fold->cells.push_back(
          {cell, images, images / cell.images_per_second - 1});
    }
  }

  void AddElsewhere(const Fold& fold) {
    const std::vector<double> sizes = Sizes(fold.cells);
    elsewhere_.insert(elsewhere_.end(), sizes.begin(), sizes.end());
  }

  void End(Fold fold) {
    fold.median = Quantile(Sizes(fold.cells), 0.5);
    fold.worst = Quantile(Sizes(fold.cells), 1);
    report_.folds.push_back(std::move(fold));
  }

  // Predicts each part of the 24 cells from the others.
  void LeaveOut(
      std::string fitted_to, std::string predicted, double median, double worst,
      const std::function<bool(const PaperCell&, const PaperCell&)>& together) {
    Fold fold =
        Begin(std::move(fitted_to), std::move(predicted), median, worst);
    Cells left = cells24_;
    while (!left.empty()) {
      const PaperCell first = left.front();
      const auto out = [&](const PaperCell& c) { return together(first, c); };
      const auto in = [&](const PaperCell& c) { return !together(first, c); };
      Predict(Where(cells24_, out),
              model_.Fit(Where(cells24_, in), report_.constants), &fold);
      left = Where(left, in);
    }
    End(std::move(fold));
  }

  void OtherNetwork(const std::string& from, const std::string& to,
                    double median, double worst) {
    Fold fold = Begin(from + ", N >= 16", to, median, worst);
    const auto is = [](const std::string& network) {
      return [network](const PaperCell& c) { return c.network == network; };
    };
    Predict(Where(cells24_, is(to)),
            model_.Fit(Where(all_, is(from)), report_.constants), &fold);
    End(std::move(fold));
  }

  void FewRanks() {
    Fold fold = Begin("N = 16, 32, 64", "128 and 512", 0.0562, 0.138);
    const Cells few =
        Where(all_, [](const PaperCell& c) { return c.ranks <= 64; });
    Predict(cells24_, model_.Fit(few, report_.constants), &fold);
    AddElsewhere(fold);
    End(std::move(fold));
  }

  // Those of 512 GPUs.
  void Float32() {
    Fold fold = Begin("all 24", "float32, 512 (unseen)", 0.0249, 0.0255);
    Predict(Where(model_.data().cells,
                  [](const PaperCell& c) {
                    return c.cluster == 'V' && c.ranks == 512 &&
                           c.setup == PaperSetup::kFloat32;
                  }),
            report_.constants, &fold);
    End(std::move(fold));
  }

  void ClusterP(const std::string& network, double median, double worst) {
    Fold fold = Begin("figure 8, 0.7, one GPU; V, N >= 16",
                      "cluster P, N >= 16, " + network, median, worst);
    Predict(Where(model_.data().cells,
                  [&](const PaperCell& c) {
                    return c.cluster == 'P' && c.ranks >= 16 &&
                           c.network == network &&
                           c.setup != PaperSetup::kFloat32;
                  }),
            report_.all_constants, &fold);
    AddElsewhere(fold);
    End(std::move(fold));
  }

  const PaperModel& model_;
  const Cells all_;
  const Cells cells24_;
  std::vector<double> elsewhere_;  // Absolute errors.
  PaperReport report_;
};

}  // namespace

PaperReport ReportOnPaper(const PaperModel& model) {
  return Folds(model).Run();
}

}  // namespace gradientflow::planner
