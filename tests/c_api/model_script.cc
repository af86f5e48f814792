#include "tests/c_api/model_script.h"

#include <algorithm>
#include <limits>
#include <random>

#include "gradientflow/base/str_cat.h"

namespace gradientflow::testing {
namespace {

constexpr int kOps = 40;

std::uint64_t Mix(std::uint64_t a, std::uint64_t b, std::uint64_t c,
                  std::uint64_t d) {
  std::uint64_t h = a * 0x9E3779B97F4A7C15U + b;
  for (const std::uint64_t next : {c, d, std::uint64_t{1}}) {
    h = (h ^ (h >> 29)) * 0xBF58476D1CE4E5B9U + next;
  }
  return h ^ (h >> 32);
}

JobSetting MakeJob(std::mt19937_64& random) {
  const auto draw = [&](auto... values) {
    const char* const all[] = {values...};
    return std::string(all[random() % sizeof...(values)]);
  };
  constexpr std::size_t kElements[] = {0, 1, 2, 7, 64, 101, 1009, 5003};
  JobSetting job;
  job.ranks = 1 + static_cast<int>(random() % 4);
  job.elements.resize(random() % 6);
  for (std::size_t& n : job.elements) {
    n = kElements[random() % std::size(kElements)];
  }
  job.sparse = random() % 3 == 0 && !job.elements.empty() &&
               *std::max_element(job.elements.begin(), job.elements.end()) > 0;
  const std::string residual = draw("plain", "momentum");
  job.momentum_residual = job.sparse && residual == "momentum";
  job.settings = {
      {"socket_ifname", "lo"},
      {"log_level", "error"},
      {"arena_bytes", "64MB"},
      {"timeout_seconds", "60"},
      {"fabric", draw("auto", "tcp")},
      {"bucket_bytes", draw("0", "700", "64KB", "auto", "inf")},
      {"overlap", draw("on", "on", "off")},
      {"segment_bytes", draw("4KB", "256KB")},
      {"sparsity", job.sparse ? "0.5" : "0"},
      {"chunk_elements", "50"},
      {"residual", residual},
      {"momentum", "0.5"},
  };
  return job;
}

// Draws the next act, and whether some rank may be in a step after it.
Act Draw(std::mt19937_64& random, bool* in_step) {
  constexpr Act kAnywhere[] = {Act::kCollective, Act::kCollective, Act::kStart,
                               Act::kStart,      Act::kWait,       Act::kGroup,
                               Act::kMessages,   Act::kShared,     Act::kRead};
  constexpr Act kBetween[] = {Act::kApply, Act::kApply,   Act::kScale,
                              Act::kSave,  Act::kRestore, Act::kGarbage};
  switch (random() % 6) {
    case 0:
      *in_step = true;
      return Act::kMark;
    case 1:
    case 2:
      *in_step = false;
      return Act::kFinish;
    case 3:
      if (!*in_step) return kBetween[random() % std::size(kBetween)];
      return Act::kMark;
    default:
      return kAnywhere[random() % std::size(kAnywhere)];
  }
}

}  // namespace

const char* Name(Act act) {
  constexpr const char* kNames[] = {
      "mark",    "finish",   "apply",      "scale", "save",
      "restore", "garbage",  "collective", "start", "wait",
      "group",   "messages", "shared",     "read"};
  return kNames[static_cast<std::size_t>(act)];
}

std::string Describe(const JobSetting& job) {
  std::string text = StrCat(job.ranks, " ranks, tensors of");
  for (const std::size_t n : job.elements) text += StrCat(" ", n);
  for (const auto& [name, value] : job.settings) {
    text += StrCat(", ", name, "=", value);
  }
  return text;
}

bool Script::Present(int rank, std::size_t tensor, std::uint64_t round) const {
  return Mix(seed, static_cast<std::uint64_t>(rank), tensor, round) % 5 != 0;
}

bool Script::Spoils(int rank, std::size_t tensor, std::uint64_t round) const {
  return Mix(seed + 1, static_cast<std::uint64_t>(rank), tensor, round) % 41 ==
         0;
}

float Script::Gradient(int rank, std::size_t tensor, std::size_t i,
                       std::uint64_t round) const {
  if (i == 0 && Spoils(rank, tensor, round)) {
    return std::numeric_limits<float>::infinity();
  }
  const std::uint64_t mix =
      static_cast<std::uint64_t>(rank) * 7 + tensor * 3 + i + round * 5 + seed;
  return static_cast<float>(static_cast<int>(mix % 17) - 8);
}

bool Script::Nonfinite(std::uint64_t round) const {
  for (int r = 0; r < job.ranks; ++r) {
    for (std::size_t t = 0; t < job.elements.size(); ++t) {
      if (job.elements[t] > 0 && Present(r, t, round) && Spoils(r, t, round)) {
        return true;
      }
    }
  }
  return false;
}

std::vector<std::int64_t> Script::Values(int rank, std::uint32_t number,
                                         std::size_t count) const {
  std::vector<std::int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::int64_t{number} * 1000 + (rank + 1) * 100'000'000LL +
                static_cast<std::int64_t>(i * (i % 3));
  }
  return values;
}

std::vector<std::int64_t> Script::Sum(std::uint32_t number,
                                      std::size_t count) const {
  std::vector<std::int64_t> sum(count, 0);
  for (int r = 0; r < job.ranks; ++r) {
    const std::vector<std::int64_t> theirs = Values(r, number, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += theirs[i];
  }
  return sum;
}

Script MakeScript(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Script script;
  script.seed = seed;
  script.job = MakeJob(random);
  for (std::uint32_t i = 0; i < kOps; ++i) {
    Op op;
    op.act = Draw(random, &script.in_step);
    op.number = i * 5000 + static_cast<std::uint32_t>(random() % 5000);
    script.ops.push_back(op);
  }
  script.end = static_cast<JobEnding>(random() % 3);
  script.culprit =
      static_cast<int>(random() % static_cast<std::uint64_t>(script.job.ranks));
  const std::vector<std::size_t>& elements = script.job.elements;
  if (script.end == JobEnding::kMisused) {
    const auto largest = std::max_element(elements.begin(), elements.end());
    if (elements.size() < 2 || *largest == 0) script.end = JobEnding::kAbort;
    script.held_back = static_cast<std::size_t>(largest - elements.begin());
  }
  return script;
}

}  // namespace gradientflow::testing
