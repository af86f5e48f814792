#include "gradientflow/planner/usl.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "gradientflow/base/quantile.h"
#include "gradientflow/base/str_cat.h"

namespace gradientflow::planner {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
using Three = std::array<double, 3>;

// One of the runs as a linear equation in x = (1, a, b) / g: with t = N / X,
// t = x0 + x1 (N - 1) + x2 N (N - 1). The relative error of X is that of t.
struct Equation {
  Three factors;
  double wanted = 0;
};

// Solves the normal equations of the unknowns in `free`; the others are 0.
Three LeastSquares(const std::vector<Equation>& equations,
                   const std::vector<std::size_t>& free) {
  std::array<std::array<double, 4>, 3> m{};
  const std::size_t n = free.size();
  for (const Equation& e : equations) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        m[i][j] += e.factors[free[i]] * e.factors[free[j]];
      }
      m[i][3] += e.factors[free[i]] * e.wanted;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    // The matrix is positive definite: no pivoting.
    for (std::size_t row = 0; row < n; ++row) {
      if (row == i || m[i][i] == 0) continue;
      const double factor = m[row][i] / m[i][i];
      for (std::size_t k = 0; k < 4; ++k) m[row][k] -= factor * m[i][k];
    }
  }
  Three x{};
  for (std::size_t i = 0; i < n; ++i) {
    x[free[i]] = m[i][i] != 0 ? m[i][3] / m[i][i] : 0;
  }
  return x;
}

double SumOfSquares(const std::vector<UslRun>& runs, bool relative,
                    const UslFit& fit) {
  double sum = 0;
  for (const UslRun& run : runs) {
    const double error =
        (fit.Rate(run.ranks) - run.rate) / (relative ? run.rate : 1);
    sum += error * error;
  }
  return sum;
}

// A first guess: with all combinations of a and b at their bound of 0, the best
// that keeps the bounds.
UslFit Guess(const std::vector<UslRun>& runs, bool relative) {
  std::vector<Equation> equations;
  for (const UslRun& run : runs) {
    const double n = run.ranks;
    const double weight = run.rate / n;
    equations.push_back({{weight, weight * (n - 1), weight * n * (n - 1)}, 1});
  }
  UslFit best;
  double least = kInfinite;
  for (const auto& free :
       std::vector<std::vector<std::size_t>>{{0, 1, 2}, {0, 1}, {0, 2}, {0}}) {
    const Three x = LeastSquares(equations, free);
    if (x[0] <= 0) continue;
    const UslFit fit{1 / x[0], std::clamp(x[1] / x[0], 0.0, 1.0),
                     std::clamp(x[2] / x[0], 0.0, 1.0)};
    const double sum = SumOfSquares(runs, relative, fit);
    if (sum < least) {
      best = fit;
      least = sum;
    }
  }
  return best;
}

// The change by Gauss and Newton of log g, a and b, of which those that are at
// their bound and would leave it stay there.
Three Change(const std::vector<UslRun>& runs, bool relative, const UslFit& fit,
             const std::vector<std::size_t>& free, double damping) {
  std::vector<Equation> equations;
  Three scale{};
  for (const UslRun& run : runs) {
    const double n = run.ranks;
    const double rate = fit.Rate(n);
    const double slowed = fit.gamma * n / rate;
    const double weight = relative ? 1 / run.rate : 1;
    equations.push_back({{weight * rate, -weight * rate * (n - 1) / slowed,
                          -weight * rate * n * (n - 1) / slowed},
                         weight * (run.rate - rate)});
    for (std::size_t i = 0; i < 3; ++i) {
      scale[i] += equations.back().factors[i] * equations.back().factors[i];
    }
  }
  for (const std::size_t i : free) {
    Equation damped{};
    damped.factors[i] = std::sqrt(damping * scale[i]);
    equations.push_back(damped);
  }
  return LeastSquares(equations, free);
}

UslFit Moved(const UslFit& fit, const Three& change) {
  return {fit.gamma * std::exp(std::clamp(change[0], -1.0, 1.0)),
          std::clamp(fit.alpha + change[1], 0.0, 1.0),
          std::clamp(fit.beta + change[2], 0.0, 1.0)};
}

// The unknowns that may move: a bound holds what pushes against it.
std::vector<std::size_t> Free(const std::vector<UslRun>& runs, bool relative,
                              const UslFit& fit) {
  std::vector<std::size_t> free{0, 1, 2};
  const auto inside = [](double x) { return x > 0 && x < 1; };
  if (inside(fit.alpha) && inside(fit.beta)) return free;
  for (int round = 0; round < 2; ++round) {
    const Three change = Change(runs, relative, fit, free, 0);
    std::vector<std::size_t> kept;
    for (const std::size_t i : free) {
      const double at = i == 1 ? fit.alpha : fit.beta;
      const bool held =
          i > 0 && ((at <= 0 && change[i] < 0) || (at >= 1 && change[i] > 0));
      if (!held) kept.push_back(i);
    }
    free = kept;
  }
  return free;
}

// Levenberg & Marquardt within the bounds.
UslFit Improve(const std::vector<UslRun>& runs, bool relative, UslFit fit) {
  constexpr int kMostChanges = 200;
  double sum = SumOfSquares(runs, relative, fit);
  double damping = 1e-4;
  for (int i = 0; i < kMostChanges && damping < 1e12; ++i) {
    const UslFit next = Moved(
        fit, Change(runs, relative, fit, Free(runs, relative, fit), damping));
    const double smaller = SumOfSquares(runs, relative, next);
    if (!(smaller < sum)) {
      damping *= 8;
      continue;
    }
    const bool done = sum - smaller <= 1e-14 * sum;
    fit = next;
    sum = smaller;
    damping = std::max(damping / 8, 1e-12);
    if (done) break;
  }
  return fit;
}

Interval80 MiddleOf(const std::vector<double>& values) {
  return {Quantile(values, 0.1), Quantile(values, 0.9)};
}

// Draws new runs as they might have come as well.
class Bootstrap {
 public:
  Bootstrap(const std::vector<UslRun>& runs, const UslFit& fit,
            std::uint64_t seed)
      : runs_(runs), fit_(fit), random_(seed) {
    for (const UslRun& run : runs) by_ranks_[run.ranks].push_back(run.rate);
    repeated_ =
        std::all_of(by_ranks_.begin(), by_ranks_.end(),
                    [](const auto& entry) { return entry.second.size() > 1; });
    // Errors of what was fitted are smaller than those of what will be: by the
    // three numbers that were fitted, or by the mean of the repeated runs.
    const auto n = static_cast<double>(runs.size());
    widen_ = std::sqrt(n / (n - 3));
    for (const UslRun& run : runs) {
      errors_.push_back(widen_ * (run.rate / fit.Rate(run.ranks) - 1));
    }
  }

  std::vector<UslRun> Draw() {
    std::vector<UslRun> drawn;
    for (const UslRun& run : runs_) {
      drawn.push_back(
          {run.ranks, repeated_ ? Repeated(run.ranks) : Fitted(run.ranks)});
    }
    return drawn;
  }

 private:
  double Pick(const std::vector<double>& from) {
    return from[static_cast<std::size_t>(random_() % from.size())];
  }
  double Repeated(double ranks) {
    const std::vector<double>& rates = by_ranks_.at(ranks);
    double mean = 0;
    for (const double rate : rates) mean += rate;
    const auto n = static_cast<double>(rates.size());
    mean /= n;
    return std::max(mean * 1e-3,
                    mean + std::sqrt(n / (n - 1)) * (Pick(rates) - mean));
  }
  double Fitted(double ranks) {
    return fit_.Rate(ranks) * std::max(1e-3, 1 + Pick(errors_));
  }

  const std::vector<UslRun>& runs_;
  const UslFit fit_;
  std::mt19937_64 random_;
  std::map<double, std::vector<double>> by_ranks_;
  std::vector<double> errors_;
  double widen_ = 1;
  bool repeated_ = false;
};

}  // namespace

double UslFit::Rate(double ranks) const {
  return gamma * ranks / (1 + alpha * (ranks - 1) + beta * ranks * (ranks - 1));
}

double UslFit::peak_ranks() const {
  return beta > 0 ? std::sqrt((1 - alpha) / beta) : kInfinite;
}

double UslFit::most_rate() const {
  if (beta > 0) return Rate(std::max(1.0, peak_ranks()));
  return alpha > 0 ? gamma / alpha : kInfinite;
}

UslFit FitUsl(const std::vector<UslRun>& runs, bool relative) {
  return Improve(runs, relative, Guess(runs, relative));
}

Result<UslReport> ReportUsl(const std::vector<UslRun>& runs, int draws,
                            std::uint64_t seed) {
  std::map<double, int> ranks;
  for (const UslRun& run : runs) {
    ++ranks[run.ranks];
    if (run.rate > 0) continue;
    return Status(StatusCode::kInvalidArgument,
                  StrCat("a run of ", run.ranks, " ranks has the rate ",
                         run.rate, "; expected one above 0"));
  }
  if (ranks.size() < kLeastUslPoints) {
    return Status(StatusCode::kInvalidArgument,
                  StrCat("runs with ", ranks.size(),
                         " different numbers of ranks; a fit needs at least ",
                         kLeastUslPoints));
  }
  UslReport report;
  report.fit = FitUsl(runs, true);
  report.largest_ranks = ranks.rbegin()->first;
  std::vector<double> errors;
  for (const UslRun& run : runs) {
    errors.push_back(std::abs(report.fit.Rate(run.ranks) / run.rate - 1));
  }
  report.median_error = Quantile(errors, 0.5);
  Bootstrap bootstrap(runs, report.fit, seed);
  std::array<std::vector<double>, 5> drawn;
  for (int i = 0; i < draws; ++i) {
    const UslFit fit = FitUsl(bootstrap.Draw(), true);
    drawn[0].push_back(fit.gamma);
    drawn[1].push_back(fit.alpha);
    drawn[2].push_back(fit.beta);
    drawn[3].push_back(fit.peak_ranks());
    drawn[4].push_back(fit.most_rate());
  }
  if (draws < 1) return report;
  report.gamma = MiddleOf(drawn[0]);
  report.alpha = MiddleOf(drawn[1]);
  report.beta = MiddleOf(drawn[2]);
  report.peak_ranks = MiddleOf(drawn[3]);
  report.most_rate = MiddleOf(drawn[4]);
  return report;
}

Result<double> PredictUsl(const UslReport& report, double ranks) {
  if (ranks > kMostUslExtrapolation * report.largest_ranks) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat(ranks, " ranks are more than twice the ", report.largest_ranks,
               " of the largest run: this law summarises runs that were made, "
               "and says nothing about others"));
  }
  return report.fit.Rate(ranks);
}

}  // namespace gradientflow::planner
