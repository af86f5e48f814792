#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gradientflow/planner/paper_data.h"
#include "gradientflow/planner/workload.h"

namespace gradientflow::planner {

// The four constants of the paper's clusters that nothing published says. They
// are shared by all networks, setups and numbers of GPUs.
struct SharedConstants {
  double hop_seconds = 4.3e-6;       // Of each of the ring's 2 (N - 1) hops.
  double bytes_per_second = 2.35e9;  // Of a tensor, while backward runs.
  double spread_fraction = 0.03;     // Of a rank's own work.
  double backward_seconds_per_call = 2e-4;  // Of a call under backward.
};

// The planner's model of the paper's measurements: a step of PlayStep() whose
// buckets are the library's rings, or, on cluster P, take what figure 8 says.
class PaperModel {
 public:
  // `data` must outlive it.
  explicit PaperModel(const PaperData& data);

  const PaperData& data() const { return data_; }
  // On cluster P, REQUIRES that figure 8 has the cell's number of ranks.
  double ImagesPerSecond(const PaperCell& cell,
                         const SharedConstants& constants) const;

  // The constants that fit the cells best: on logarithms of ratios, with a
  // loss that grows linearly beyond 3 % so that single cells do not decide. The
  // search begins at `start`.
  SharedConstants Fit(const std::vector<PaperCell>& cells,
                      const SharedConstants& start) const;

 private:
  struct Setup {
    Exchange exchange;
    std::vector<Bucketing> bucketings;
  };

  const PaperData& data_;
  std::map<std::pair<std::string, PaperSetup>, Setup> setups_;
  // What a small message takes, by figure 8.
  double small_hop_seconds_ = 0;
};

// predicted / observed - 1.
double ErrorOf(const PaperModel& model, const PaperCell& cell,
               const SharedConstants& constants);

}  // namespace gradientflow::planner
