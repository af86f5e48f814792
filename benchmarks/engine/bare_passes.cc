#include "benchmarks/engine/bare_passes.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "benchmarks/lib/turns.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/pages.h"

// Memory moves in lines of 64 bytes, so a line is what the loops work on. With
// g a line of gradients and r the lines of the residual beside it:
//
//   read g, and add it to a sum; r += g; if gradients are written, g += 1
//
// All numbers are integers, so that sums can be checked to the bit whatever the
// order of the additions.
namespace gradientflow::benchmarks {
namespace {

using Word = std::uint32_t;
constexpr std::size_t kLineWords = 16;
using Line __attribute__((vector_size(kLineWords * sizeof(Word)))) = Word;

constexpr std::size_t kAheadLines[] = {0, 16, 32};  // Prefetched; best counts.

struct Range {
  std::size_t begin;
  std::size_t end;
};

// Lines of a pass. Word i of the gradients begins as Initial(i), and those of
// the residual as zero.
struct Region {
  BareTraffic traffic;
  std::size_t residual_lines = 0;  // For each line of gradients.
  std::size_t lines = 0;
  Pages<Word> grads;
  Pages<Word> residual;

  Region(const BareTraffic& of, std::size_t element_bytes)
      : traffic(of),
        residual_lines(of.residual ? sizeof(Word) / element_bytes : 0),
        lines(of.elements * element_bytes / (kLineWords * sizeof(Word))),
        grads(NewPages<Word>(lines * kLineWords)),
        residual(NewPages<Word>(lines * residual_lines * kLineWords)) {
    if (!grads || !residual) throw std::bad_alloc();
    for (std::size_t i = 0; i < lines * kLineWords; ++i) grads[i] = Initial(i);
  }
  static Word Initial(std::size_t i) {
    return static_cast<Word>(i * 2654435761);
  }
};

template <std::size_t kResidualLines, bool kWrites>
Word Pass(Word* grads, Word* residual, Range range, std::size_t ahead) {
  Line sums = {};
  for (std::size_t i = range.begin; i < range.end; ++i) {
    Line* const line = reinterpret_cast<Line*>(grads) + i;
    Line* const beside = reinterpret_cast<Line*>(residual) + i * kResidualLines;
    if (ahead > 0) __builtin_prefetch(line + ahead);
    for (std::size_t j = 0; j < kResidualLines; ++j) {
      if (ahead > 0) __builtin_prefetch(beside + j + ahead);
      beside[j] += *line;
    }
    sums += *line;
    if (kWrites) *line += 1;
  }
  Word total = 0;
  for (std::size_t w = 0; w < kLineWords; ++w) total += sums[w];
  return total;
}

Word RunPass(Region& region, Range range, std::size_t ahead) {
  using Function = Word (*)(Word*, Word*, Range, std::size_t);
  constexpr Function kFunctions[3][2] = {
      {&Pass<0, false>, &Pass<0, true>},
      {&Pass<1, false>, &Pass<1, true>},
      {&Pass<2, false>, &Pass<2, true>},
  };
  return kFunctions[region.residual_lines][region.traffic.writes_grads ? 1 : 0](
      region.grads.get(), region.residual.get(), range, ahead);
}

struct Rounds {
  std::vector<double> milliseconds;
  Word sum = 0;  // Of all that was read.
};

// Runs all regions on all threads, `rounds` times.
Rounds Run(std::vector<Region>& regions, int threads, int rounds,
           std::size_t ahead) {
  Rounds seen;
  std::atomic<Word> sum{0};
  std::atomic<int> arrived{0};
  const auto meet = [&](int times) {
    ++arrived;
    while (arrived.load() < times * threads) std::this_thread::yield();
  };
  const auto share = [&](std::size_t t) {
    const auto of = static_cast<std::size_t>(threads);
    for (int round = 0; round < rounds; ++round) {
      meet(2 * round + 1);
      const Clock::Time begin = SteadyClock().Now();
      for (Region& region : regions) {
        const std::size_t lines = region.lines;
        sum += RunPass(region, {lines * t / of, lines * (t + 1) / of}, ahead);
      }
      meet(2 * round + 2);
      if (t > 0) continue;
      seen.milliseconds.push_back(1e3 * Seconds(SteadyClock().Now() - begin));
    }
  };
  std::vector<std::thread> helpers;
  for (int t = 1; t < threads; ++t) helpers.emplace_back(share, t);
  share(0);
  for (std::thread& helper : helpers) helper.join();
  seen.sum = sum;
  return seen;
}

// Compares every word with what one round should have read and written.
void Check(const std::vector<Region>& regions, Word sum) {
  for (const Region& region : regions) {
    const std::size_t beside = region.residual_lines;
    for (std::size_t i = 0; i < region.lines * kLineWords; ++i) {
      const Word was = Region::Initial(i);
      sum -= was;
      bool right = region.grads[i] == was + region.traffic.writes_grads;
      for (std::size_t j = 0; j < beside; ++j) {
        const std::size_t line = i / kLineWords * beside + j;
        right &= region.residual[line * kLineWords + i % kLineWords] == was;
      }
      if (!right) throw std::runtime_error("the bare loop wrote wrong words");
    }
  }
  if (sum != 0) throw std::runtime_error("the bare loop read wrong words");
}

std::size_t BytesOf(const BareTraffic& traffic, std::size_t element_bytes) {
  const std::size_t grads = element_bytes * (traffic.writes_grads ? 2 : 1);
  return traffic.elements *
         (grads + (traffic.residual ? 2 * sizeof(float) : 0));
}

}  // namespace

std::size_t BytesOf(const BarePasses& passes) {
  return BytesOf(passes.kept, passes.element_bytes) +
         BytesOf(passes.sent, passes.element_bytes);
}

double TimeBarePasses(const BarePasses& passes, int threads, int rounds) {
  std::vector<Region> regions;
  regions.emplace_back(passes.kept, passes.element_bytes);
  regions.emplace_back(passes.sent, passes.element_bytes);
  Check(regions, Run(regions, threads, 1, 0).sum);
  double best = std::numeric_limits<double>::infinity();
  for (const std::size_t ahead : kAheadLines) {
    best = std::min(best,
                    Median(Run(regions, threads, rounds, ahead).milliseconds));
  }
  return best;
}

}  // namespace gradientflow::benchmarks
