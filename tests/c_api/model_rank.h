#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "integrations/c/gradientflow.h"
#include "tests/c_api/model_script.h"

namespace gradientflow::testing {

inline constexpr float kModelMomentum = 0.5F;  // As in the script's settings.
// A ticket that is never given out.
inline constexpr std::uint64_t kNoTicket = 1'000'000'000;

// The first failure in a job.
class Verdict {
 public:
  void Wrong(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!wrong_) text_ = what;
    wrong_ = true;
  }
  bool wrong() const { return wrong_; }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::atomic<bool> wrong_{false};
  std::string text_;
};

// One rank: makes the script's calls, and predicts their results.
class Rank {
 public:
  Rank(const Script& script, int rank, Verdict* verdict)
      : script_(script),
        job_(script.job),
        rank_(rank),
        verdict_(*verdict),
        random_(script.seed * 31 + static_cast<std::uint64_t>(rank)) {}

  void Run(const std::string& meeting_place);

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::size_t tensors() const { return job_.elements.size(); }
  bool touched() const {
    return std::count(marked_.begin(), marked_.end(), true) > 0;
  }
  bool all_marked() const {
    return std::count(marked_.begin(), marked_.end(), false) == 0;
  }
  std::uint32_t Local(std::uint32_t bound) {
    return static_cast<std::uint32_t>(random_() % bound);
  }
  void Note(const std::string& text) { notes_.push_back(text); }

  void Expect(bool right, const std::string& what);
  // Checks that `call`, which returned `seen`, should have returned `expected`.
  bool Returns(gf_status expected, gf_status seen, const char* call);
  bool Ok(gf_status seen, const char* call) {
    return Returns(GF_OK, seen, call);
  }

  bool Open(const std::string& meeting_place);
  void AskBeside() const;
  void Do(const Op& op);
  void Mark(std::size_t tensor);
  void MarkSome(std::uint32_t share);
  void Finish(std::uint32_t number);
  void CheckSums();
  gf_status Apply(float momentum, std::size_t count, float** weights);
  void ApplyStep();
  void Scale(std::uint32_t number);
  void Save();
  void Restore();
  void RestoreGarbage();
  void Collective(std::uint32_t number);
  void Reduction(std::uint32_t number);
  void Move(std::uint32_t number);
  std::vector<std::int64_t> Block(const std::vector<std::int64_t>& of,
                                  std::size_t n) const;
  void CheckAll(const std::vector<std::int64_t>& seen,
                const std::vector<std::int64_t>& expected, const char* what);
  void Start(std::uint32_t number);
  void WaitOldest();
  void Group(std::uint32_t number);
  void Messages(std::uint32_t number);
  void Shared(std::uint32_t number);
  void Read();
  void Illegal();
  void IllegalNow(std::uint32_t which);
  void IllegalCollective(std::uint32_t which);
  void IllegalStep(std::uint32_t which);
  void End();
  void GatherAt(int rank);
  void ExpectFailed(gf_status why);

  const Script& script_;
  const JobSetting& job_;
  const int rank_;
  Verdict& verdict_;
  std::mt19937_64 random_;
  std::vector<std::string> notes_;
  gf_comm* comm_ = nullptr;
  gf_session* session_ = nullptr;

  // The model.
  std::vector<bool> marked_;
  std::uint64_t step_ = 0;
  std::uint64_t round_ = 0;  // Like step_, but it never decreases.
  bool may_apply_ = false;
  bool nonfinite_ = false;  // In the last finished step.
  float scale_ = 1.0F;
  std::vector<float> mean_;  // In the last finished step, by tensor.
  std::vector<float> weights_;
  std::vector<float> momentum_;  // Empty before the first update.
  std::vector<float> real_weights_;
  struct Saved {
    std::vector<char> bytes;
    std::uint64_t step = 0;
    std::vector<float> momentum;
  };
  std::unique_ptr<Saved> saved_;
  struct Started {
    std::vector<std::int64_t> data;
    std::vector<std::int64_t> expected;
    std::uint64_t ticket = 0;
  };
  std::deque<Started> started_;
};

#define RETURNS(expected, call) Returns(expected, call, #call)
#define OK(call) Ok(call, #call)
#define INVALID(call) Returns(GF_INVALID_ARGUMENT, call, #call)
#define WRONG_MOMENT(call) Returns(GF_FAILED_PRECONDITION, call, #call)

}  // namespace gradientflow::testing
