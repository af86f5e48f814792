#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/c_api/model_rank.h"
#include "tests/c_api/model_script.h"

// Random calls of the whole C API, legal and illegal, on ranks that are
// threads, compared with a model of a session's states: what each call returns,
// and which sums result. To run one seed: --gtest_random_seed=SEED.
namespace gradientflow::testing {
namespace {

void RunScript(std::uint64_t seed) {
  const Script script = MakeScript(seed);
  std::string place = ::testing::TempDir() + "/gf_model_XXXXXX";
  ASSERT_NE(mkdtemp(place.data()), nullptr);
  Verdict verdict;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::thread> threads;
  for (int r = 0; r < script.job.ranks; ++r) {
    ranks.push_back(std::make_unique<Rank>(script, r, &verdict));
    threads.emplace_back(
        [&rank = *ranks.back(), &place] { rank.Run("file://" + place); });
  }
  for (std::thread& thread : threads) thread.join();
  std::error_code ignored;
  std::filesystem::remove_all(place, ignored);
  if (!verdict.wrong()) return;
  std::string text = StrCat("seed ", seed, ", ", Describe(script.job), "\n",
                            verdict.text(), "\n");
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    text += StrCat("rank ", r, " called:\n");
    for (const std::string& note : ranks[r]->notes()) text += note + "\n";
  }
  FAIL() << text;
}

class Model : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Model, SaysWhatEveryCallReturns) {
  const int seed = GTEST_FLAG_GET(random_seed);
  if (seed != 0) return RunScript(static_cast<std::uint64_t>(seed));
  for (std::uint64_t i = 1; i <= 15 && !HasFailure(); ++i) {
    RunScript(GetParam() * 1000 + i);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Model,
                         ::testing::Range(std::uint64_t{0}, std::uint64_t{4}));

}  // namespace
}  // namespace gradientflow::testing
