#include "benchmarks/engine/bare_passes.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "benchmarks/median.h"
#include "gradientflow/base/clock.h"
#include "gradientflow/base/pages.h"
#include "gradientflow/base/str_cat.h"

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
constexpr std::size_t kQuarters = 4;
constexpr std::size_t kQuarterWords = kLineWords / kQuarters;
using Quarter __attribute__((vector_size(16))) = Word;

constexpr std::size_t kAheadLines[] = {0, 16, 32};  // Prefetched; best counts.

struct Range {
  std::size_t begin;
  std::size_t end;
};

// Lines of a pass.
struct Region {
  BareTraffic traffic;
  std::size_t residual_lines = 1;  // For each line of gradients.
  Pages<Word> grads;
  Pages<Word> residual;
  std::size_t lines = 0;

  Region(const BareTraffic& of, std::size_t element_bytes)
      : traffic(of),
        residual_lines(sizeof(Word) / element_bytes),
        lines(of.elements * element_bytes / (kLineWords * sizeof(Word))) {
    grads = NewPages<Word>(lines * kLineWords);
    if (of.residual)
      residual = NewPages<Word>(lines * residual_lines * kLineWords);
    for (std::size_t i = 0; i < lines * kLineWords; ++i) {
      grads[i] = static_cast<Word>(i * 2654435761);
    }
  }
  bool there() const {
    return grads != nullptr && (residual != nullptr || !traffic.residual);
  }
};

template <std::size_t kResidualLines, bool kWrites>
Word Pass(Word* grads, Word* residual, Range range, std::size_t ahead) {
  Quarter sums[kQuarters] = {};
  for (std::size_t i = range.begin; i < range.end; ++i) {
    auto* const line = reinterpret_cast<Quarter*>(grads + i * kLineWords);
    if (ahead > 0) __builtin_prefetch(line + ahead * kQuarters);
    Word* const beside = residual + i * kResidualLines * kLineWords;
    for (std::size_t j = 0; j < kResidualLines; ++j) {
      auto* const to = reinterpret_cast<Quarter*>(beside + j * kLineWords);
      if (ahead > 0) __builtin_prefetch(to + ahead * kQuarters);
      for (std::size_t q = 0; q < kQuarters; ++q) to[q] += line[q];
    }
    for (std::size_t q = 0; q < kQuarters; ++q) {
      sums[q] += line[q];
      if (kWrites) line[q] += 1;
    }
  }
  Word total = 0;
  for (const Quarter& quarter : sums) {
    for (std::size_t w = 0; w < kQuarterWords; ++w) total += quarter[w];
  }
  return total;
}

Word RunPass(Region& region, Range range, std::size_t ahead) {
  using Function = Word (*)(Word*, Word*, Range, std::size_t);
  constexpr Function kFunctions[3][2] = {
      {&Pass<0, false>, &Pass<0, true>},
      {&Pass<1, false>, &Pass<1, true>},
      {&Pass<2, false>, &Pass<2, true>},
  };
  const std::size_t beside =
      region.traffic.residual ? region.residual_lines : 0;
  return kFunctions[beside][region.traffic.writes_grads ? 1 : 0](
      region.grads.get(), region.residual.get(), range, ahead);
}

// Threads that run all regions, again and again, when they are told to.
class Team {
 public:
  Team(std::vector<Region>& regions, int threads)
      : regions_(regions),
        sums_(static_cast<std::size_t>(threads) * regions.size()),
        threads_(threads) {
    for (int t = 1; t < threads; ++t) {
      helpers_.emplace_back([this, t] { Help(t); });
    }
  }
  ~Team() {
    stop_ = true;
    ++round_;
    for (std::thread& helper : helpers_) helper.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Returns the milliseconds of a round.
  double Run(std::size_t ahead) {
    const SteadyClock clock;
    ahead_ = ahead;
    left_ = threads_;
    const Clock::Time begin = clock.Now();
    ++round_;
    Share(0);
    while (left_.load() > 0) std::this_thread::yield();
    return Seconds(clock.Now() - begin) * 1e3;
  }
  // The sum that the last round has read in a region.
  Word SumOf(std::size_t region) const {
    Word sum = 0;
    for (std::size_t i = region; i < sums_.size(); i += regions_.size()) {
      sum += sums_[i];
    }
    return sum;
  }

 private:
  void Help(int thread) {
    for (int seen = 0;;) {
      while (round_.load() == seen) std::this_thread::yield();
      seen = round_.load();
      if (stop_) return;
      Share(thread);
    }
  }
  void Share(int thread) {
    const auto t = static_cast<std::size_t>(thread);
    const auto of = static_cast<std::size_t>(threads_);
    for (std::size_t r = 0; r < regions_.size(); ++r) {
      const std::size_t lines = regions_[r].lines;
      sums_[t * regions_.size() + r] = RunPass(
          regions_[r], {lines * t / of, lines * (t + 1) / of}, ahead_.load());
    }
    --left_;
  }

  std::vector<Region>& regions_;
  std::vector<Word> sums_;  // By thread and region.
  const int threads_;
  std::atomic<bool> stop_{false};
  std::atomic<int> round_{0};
  std::atomic<int> left_{0};
  std::atomic<std::size_t> ahead_{0};
  std::vector<std::thread> helpers_;
};

Word SumNow(const Region& region) {
  const Word* const grads = region.grads.get();
  return std::accumulate(grads, grads + region.lines * kLineWords, Word{0});
}

// Whether a region is as one round leaves it.
bool IsAfterOneRound(const Region& region) {
  const BareTraffic& traffic = region.traffic;
  const std::size_t beside = traffic.residual ? region.residual_lines : 0;
  for (std::size_t i = 0; i < region.lines * kLineWords; ++i) {
    const auto was = static_cast<Word>(i * 2654435761);
    if (region.grads[i] != was + (traffic.writes_grads ? 1 : 0)) return false;
    for (std::size_t j = 0; j < beside; ++j) {
      const std::size_t line = i / kLineWords * beside + j;
      if (region.residual[line * kLineWords + i % kLineWords] != was) {
        return false;
      }
    }
  }
  return true;
}

// Runs a round, and compares every word that it should have written.
Status CheckRound(Team& team, std::vector<Region>& regions) {
  std::vector<Word> before;
  for (const Region& region : regions) before.push_back(SumNow(region));
  team.Run(kAheadLines[0]);
  for (std::size_t r = 0; r < regions.size(); ++r) {
    if (team.SumOf(r) == before[r] && IsAfterOneRound(regions[r])) continue;
    return Status(StatusCode::kDataLoss,
                  StrCat("the bare loop: pass ", r, " is wrong"));
  }
  return Status();
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

Result<double> TimeBarePasses(const BarePasses& passes, int threads,
                              int rounds) {
  std::vector<Region> regions;
  regions.emplace_back(passes.kept, passes.element_bytes);
  regions.emplace_back(passes.sent, passes.element_bytes);
  for (const Region& region : regions) {
    if (region.there()) continue;
    return Status(StatusCode::kResourceExhausted,
                  "the bare loop: no memory for its passes");
  }
  Team team(regions, threads);
  GF_RETURN_IF_ERROR(CheckRound(team, regions));
  std::vector<double> best;
  for (const std::size_t ahead : kAheadLines) {
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      times.push_back(team.Run(ahead));
    }
    best.push_back(Median(times));
  }
  return *std::min_element(best.begin(), best.end());
}

}  // namespace gradientflow::benchmarks
