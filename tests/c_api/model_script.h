#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// What the ranks of a job of the model-based test do together. It is drawn from
// a seed and the same on all ranks, as are the numbers that they compute with.
namespace gradientflow::testing {

enum class Act : std::uint8_t {
  kMark,    // Some unmarked tensors, different on each rank.
  kFinish,  // The step.
  kApply,   // The optimiser, even if there is no update.
  kScale,
  kSave,
  kRestore,
  kGarbage,  // Restore bytes that are no state.
  kCollective,
  kStart,
  kWait,  // For the oldest call.
  kGroup,
  kMessages,
  kShared,
  kRead,
};
const char* Name(Act act);

struct Op {
  Act act = Act::kRead;
  std::uint32_t number = 0;  // Unique seed of the rest.
};

struct JobSetting {
  int ranks = 1;
  std::vector<std::size_t> elements;  // By tensor.
  bool sparse = false;
  bool momentum_residual = false;
  std::vector<std::pair<std::string, std::string>> settings;
};
std::string Describe(const JobSetting& job);

enum class JobEnding : std::uint8_t {
  kClose,
  kAbort,    // One rank aborts the job.
  kMisused,  // One rank marks a tensor twice.
};

struct Script {
  std::uint64_t seed = 0;
  JobSetting job;
  std::vector<Op> ops;
  bool in_step = false;  // Some rank may be in a step after the last of `ops`.
  JobEnding end = JobEnding::kClose;
  int culprit = 0;            // kAbort, kMisused.
  std::size_t held_back = 0;  // kMisused: a tensor with elements.

  // Whether the tensor takes part in a round of backward, and with which
  // gradient.
  bool Present(int rank, std::size_t tensor, std::uint64_t round) const;
  float Gradient(int rank, std::size_t tensor, std::size_t i,
                 std::uint64_t round) const;
  // Whether Gradient() of any rank is not finite.
  bool Nonfinite(std::uint64_t round) const;
  // What a rank contributes to a collective, and the sum over all ranks.
  std::vector<std::int64_t> Values(int rank, std::uint32_t number,
                                   std::size_t count) const;
  std::vector<std::int64_t> Sum(std::uint32_t number, std::size_t count) const;

 private:
  bool Spoils(int rank, std::size_t tensor, std::uint64_t round) const;
};

Script MakeScript(std::uint64_t seed);

}  // namespace gradientflow::testing
