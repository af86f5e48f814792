#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/allreduce/batch.h"

namespace gradientflow::benchmarks {

// Somebody else's time for the same bytes in the same rounds.
struct Comparison {
  std::string name;    // "bound", "openmpi", "gloo".
  std::string note;    // "2 connections", or empty.
  double seconds = 0;  // Median of the rounds.
  double ratio = 0;    // Median of their time over ours, round by round.
};

struct Row {
  Batch batch;
  int ranks = 0;
  std::string fabric;
  std::string algorithm;
  double seconds = 0;  // Median of the rounds.
  std::uint64_t wrong = 0;
  std::vector<Comparison> comparisons;

  double algbw() const;  // GB/s: bytes over time.
  // GB/s: what each link carries whatever the ranks, algbw * 2(n-1)/n; for
  // comparing with hardware (as in nccl-tests).
  double busbw() const;
};

// REQUIRES: not empty.
double Median(std::vector<double> values);

// The rounds' times, ours and theirs, as a Comparison.
// REQUIRES: both of one length, not empty.
Comparison Compare(const std::string& name, const std::vector<double>& ours,
                   const std::vector<double>& theirs);

// `names`: of the comparisons that each row has.
std::string RowHeader(const std::vector<std::string>& names);
std::string RowLine(const Row& row);
std::string RowJson(const Row& row);

}  // namespace gradientflow::benchmarks
