#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/faults/board.h"
#include "benchmarks/faults/job.h"

namespace gradientflow::faults {

// What befalls one rank, and when.
struct Fault {
  int victim = 0;
  bool stop = false;  // SIGSTOP; else SIGKILL.
  Phase phase = Phase::kBackward;
  std::uint64_t step = 0;
  std::chrono::nanoseconds delay{};  // From the moment it gets there.
};

enum class Verdict : std::uint8_t {
  kClean,         // An error in time that tells what it should.
  kFinished,      // The victim had done its part: success, rightly.
  kIndirect,      // While opening: names a rank that itself was held up.
  kSlow,          // A good error, too late.
  kUnclear,       // An error that does not name rank, address and step, or of
                  // an unexpected code.
  kWrongCulprit,  // The error names another rank.
  kWrongSum,
  kHang,
  kUnexpected,  // Success without the victim's part, or a crash.
};
inline constexpr int kVerdicts = 9;
std::string_view Name(Verdict verdict);
inline bool IsGood(Verdict verdict) { return verdict <= Verdict::kIndirect; }

struct TrialResult {
  Verdict verdict = Verdict::kClean;  // Of the worst survivor.
  Phase phase = Phase::kStarting;     // The victim's, when it was hit.
  std::uint64_t step = 0;
  // From the fault to each survivor's error; of those that had one.
  std::vector<double> detection_seconds;
  std::string what;  // Of the worst survivor: what it said.
  std::vector<std::string> leftovers;
};

// Whether everything that the job needs of `rank` had been handed in: the
// library sends it without the rank's further doing. Then others may succeed,
// and their sums, which are checked, say that it was sent; else they cannot.
bool HadDoneItsPart(const JobConfig& job, const RankReport& rank);

// Runs the job in processes of its own, and lets `fault` befall it. Survivors
// must end with an error, unless HadDoneItsPart(): within 1 s of a death,
// within 1 s of the heartbeat time-out after a stop, within 1 s of the join
// time-out if it came while the job was opened. A stopped victim goes on when
// the others are done, and must end, too. REQUIRES: no other threads in this
// process.
TrialResult RunTrial(const JobConfig& job, const Fault& fault);

}  // namespace gradientflow::faults
