#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradientflow/base/status.h"

// The Universal Scalability Law (Gunther): a summary of runs that were made,
//   X(N) = g N / (1 + a (N - 1) + b N (N - 1)),
// and no model of why. It predicts badly: fitted to 8 to 128 GPUs of the paper
// it misses 512 by 20 %.
namespace gradientflow::planner {

struct UslRun {
  double ranks = 1;
  double rate = 0;  // Samples per second of all ranks.
};

struct UslFit {
  double gamma = 0;  // "g": the rate of one rank.
  double alpha = 0;  // "a": contention, in [0, 1].
  double beta = 0;   // "b": coherence, in [0, 1].

  double Rate(double ranks) const;
  // Where the rate is highest; infinite if beta is 0.
  double peak_ranks() const;
  // What the rate cannot exceed: that of the peak, or g / a if beta is 0;
  // infinite if alpha is 0 as well.
  double most_rate() const;
};

// The least sum of squares of absolute errors, or of errors relative to the
// measured rates, within the bounds. REQUIRES three runs with rates above 0.
UslFit FitUsl(const std::vector<UslRun>& runs, bool relative);

// 80 % of an interval's draws are in it.
struct Interval80 {
  double low = 0;
  double high = 0;
};

struct UslReport {
  UslFit fit;  // On relative errors.
  Interval80 gamma;
  Interval80 alpha;
  Interval80 beta;
  Interval80 peak_ranks;
  Interval80 most_rate;
  double largest_ranks = 0;
  double median_error = 0;  // Of the runs, relative.
};

inline constexpr std::size_t kLeastUslPoints = 6;
// Nobody should rely on what is further away than this times the largest N.
inline constexpr double kMostUslExtrapolation = 2;

// Fits, and finds the intervals by a bootstrap with `draws` draws: from the
// runs with the same number of ranks where there are several of each, else from
// all relative errors. kInvalidArgument with fewer than kLeastUslPoints
// different numbers of ranks, or a rate of 0.
Result<UslReport> ReportUsl(const std::vector<UslRun>& runs, int draws,
                            std::uint64_t seed);

// kInvalidArgument beyond kMostUslExtrapolation times the largest N.
Result<double> PredictUsl(const UslReport& report, double ranks);

}  // namespace gradientflow::planner
