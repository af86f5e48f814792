#pragma once

#include <cstddef>
#include <vector>

#include "gradientflow/collectives/algorithm.h"
#include "gradientflow/planner/cluster.h"

namespace gradientflow::planner {

// Up to so many ranks the schedules themselves are played.
inline constexpr int kMostPlayedRanks = 64;

// How prices of allreduces are found.
enum class Pricing {
  kClosedForms,  // The formulas by which the library chooses.
  // The same, times what playing the schedules says of them: of an algorithm
  // among more ranks, what it says of kMostPlayedRanks.
  kPlayed,
};

// What an allreduce takes, by its size. A step may have hundreds of buckets and
// a plan hundreds of bucket sizes, so prices are found once for four sizes per
// octave, and interpolated: the formulas are affine in bytes between the sizes
// at which the algorithm changes. Immutable: any thread.
class CallPrices {
 public:
  struct Point {
    double bytes = 0;  // On the wire.
    double seconds = 0;
    double latency_seconds = 0;  // What of it does not depend on the bytes.
    const CollectiveAlgorithm* algorithm = nullptr;
    // What its messages take from a backward that runs all the while.
    double host_seconds = 0;
    double rounds = 0;  // Of messages that wait for each other.
  };

  // The prices of the library's own algorithms.
  CallPrices(const Cluster& cluster, std::size_t wire_element_bytes,
             Pricing pricing);
  // Prices that were measured, by ascending bytes. Below the first point a call
  // takes as long as there. REQUIRES a point.
  explicit CallPrices(std::vector<Point> points);

  double Seconds(double bytes) const;
  double LatencySeconds(double bytes) const;
  // 0 if prices were measured.
  double Rounds(double bytes) const;
  // By how much the busiest rank's messages make a backward longer that runs
  // during all of the call.
  double HostSeconds(double bytes) const;
  // The algorithm that runs; null if prices were measured.
  const CollectiveAlgorithm* AlgorithmOf(double bytes) const;

 private:
  // The index of the last point that is not above `bytes`, and how far `bytes`
  // is on the way to the next.
  struct Place {
    std::size_t index = 0;
    double part = 0;
  };
  Place Find(double bytes) const;
  double At(double bytes, double Point::*price) const;

  std::vector<Point> points_;
};

// The library's question about an allreduce of `bytes` in this cluster.
CallQuestion QuestionFor(const Cluster& cluster, std::size_t wire_element_bytes,
                         std::size_t bytes);

}  // namespace gradientflow::planner
