#include "gradientflow/config/load_options.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "gradientflow/config/options.h"
#include "gradientflow/config/settings_table.h"
#include "gtest/gtest.h"
#include "tests/config/env.h"

namespace gradientflow {
namespace {

std::string SetBy(const LoadedOptions& loaded, std::string_view name) {
  for (std::size_t i = 0; i < Settings().size(); ++i) {
    if (Settings()[i].name == name) return loaded.origins[i].ToString();
  }
  return "no such setting";
}

TEST(LoadOptions, IsOneRankWithDefaultsInAnEmptyEnvironment) {
  for (const LoadedOptions& loaded :
       {LoadOptions(nullptr), LoadOptions(Env{}.get())}) {
    EXPECT_TRUE(loaded.status().ok());
    EXPECT_EQ(loaded.options.rank, 0);
    EXPECT_EQ(loaded.options.size, 1);
    EXPECT_EQ(SetBy(loaded, "rank"), "default (no launcher)");
    EXPECT_EQ(SetBy(loaded, "sparsity"), "default");
    EXPECT_TRUE(loaded.options.Validate().ok());
  }
}

TEST(LoadOptions, RemembersWhoSetEachValue) {
  LoadedOptions loaded = LoadOptions(
      Env{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
          "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=42",
          "GRADIENTFLOW_WIRE_DTYPE=float16", "GRADIENTFLOW_OVERLAP=on"}
          .get());
  ASSERT_TRUE(loaded.status().ok()) << loaded.status().message();
  ASSERT_TRUE(loaded.Set("Sparsity", "0.85").ok());
  EXPECT_EQ(loaded.options.rank, 1);
  EXPECT_EQ(loaded.options.size, 2);
  EXPECT_EQ(loaded.options.job_token, "42");
  EXPECT_EQ(loaded.options.guessable_token, "42");
  EXPECT_EQ(SetBy(loaded, "rank"), "Open MPI: OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(SetBy(loaded, "size"), "Open MPI: OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(SetBy(loaded, "rendezvous"), "Open MPI: all ranks on one host");
  EXPECT_EQ(SetBy(loaded, "job_token"), "Open MPI: PMIX_NAMESPACE");
  EXPECT_EQ(SetBy(loaded, "wire_dtype"), "environment");
  EXPECT_EQ(SetBy(loaded, "overlap"), "environment") << "though the default";
  EXPECT_EQ(SetBy(loaded, "sparsity"), "program");
  EXPECT_EQ(SetBy(loaded, "momentum"), "default");
  EXPECT_FALSE(loaded.Set("sparsity", "2").ok());
  EXPECT_EQ(loaded.options.sparsity, 0.85F);
}

TEST(LoadOptions, OursWinOverTheLaunchers) {
  const LoadedOptions loaded = LoadOptions(
      Env{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=1",
          "TORCHELASTIC_RUN_ID=x", "GRADIENTFLOW_RANK=5", "GRADIENTFLOW_SIZE=7",
          "GRADIENTFLOW_RENDEZVOUS=b:2", "GRADIENTFLOW_JOB_TOKEN=y"}
          .get());
  ASSERT_TRUE(loaded.status().ok());
  EXPECT_EQ(loaded.options.rank, 5);
  EXPECT_EQ(loaded.options.size, 7);
  EXPECT_EQ(loaded.options.rendezvous, "b:2");
  EXPECT_EQ(loaded.options.job_token, "y");
}

TEST(LoadOptions, OursMakeUpForAnAmbiguousLauncher) {
  const LoadedOptions loaded =
      LoadOptions(Env{"RANK=1", "MASTER_ADDR=a", "GRADIENTFLOW_RANK=0",
                      "GRADIENTFLOW_SIZE=2", "GRADIENTFLOW_RENDEZVOUS=b:2"}
                      .get());
  EXPECT_TRUE(loaded.status().ok()) << loaded.status().message();
}

TEST(LoadOptions, TheLaunchersAddressServesOurRanks) {
  const LoadedOptions loaded =
      LoadOptions(Env{"GRADIENTFLOW_RANK=0", "GRADIENTFLOW_SIZE=2",
                      "MASTER_ADDR=a", "MASTER_PORT=1"}
                      .get());
  ASSERT_TRUE(loaded.status().ok());
  EXPECT_EQ(loaded.options.rendezvous, "a:1");
}

TEST(LoadOptions, HalfOfRankAndSizeIsNoSession) {
  for (const char* half : {"GRADIENTFLOW_RANK=0", "GRADIENTFLOW_SIZE=2"}) {
    const Status status = LoadOptions(Env{half, "RANK=1", "WORLD_SIZE=4"}.get())
                              .options.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("GRADIENTFLOW_RANK"), std::string::npos);
    EXPECT_NE(status.message().find("GRADIENTFLOW_SIZE"), std::string::npos);
  }
}

TEST(LoadOptions, OneRankNeedsNoRendezvousAndSeveralDo) {
  const Env one{"RANK=0", "WORLD_SIZE=1"};
  EXPECT_TRUE(LoadOptions(one.get()).options.Validate().ok());
  const Env two{"RANK=0", "WORLD_SIZE=2"};
  const Status status = LoadOptions(two.get()).options.Validate();
  EXPECT_NE(status.message().find("MASTER_ADDR"), std::string::npos);
}

TEST(LoadOptions, TheProgramMakesUpForWhatTheLauncherLeavesOpen) {
  using Lines = std::vector<std::string>;
  for (const Lines& lines : std::vector<Lines>{
           {"WORLD_SIZE=4"},
           {"RANK=3"},
           {"RANK=9", "WORLD_SIZE=4"},
           {"OMPI_COMM_WORLD_RANK=1"},
           {"GRADIENTFLOW_SIZE=2"},
           {"WORLD_SIZE=8", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"},
           {"SLURM_STEP_ID=0", "SLURM_PROCID=1"},
           {"MASTER_ADDR=a"}}) {
    LoadedOptions loaded = LoadOptions(Env(lines).get());
    ASSERT_TRUE(loaded.status().ok()) << loaded.status().message();
    ASSERT_TRUE(loaded.Set("rank", "2").ok());
    ASSERT_TRUE(loaded.Set("size", "3").ok());
    EXPECT_FALSE(loaded.options.Validate().ok()) << "no rendezvous";
    ASSERT_TRUE(loaded.Set("rendezvous", "b:2").ok());
    ASSERT_TRUE(loaded.Set("job_token", "a secret").ok());
    EXPECT_TRUE(loaded.options.Validate().ok());
    EXPECT_EQ(loaded.options.rank, 2);
    EXPECT_EQ(loaded.options.size, 3);
  }
}

TEST(LoadOptions, TheLaunchersAddressServesTheProgramsRanks) {
  LoadedOptions loaded =
      LoadOptions(Env{"WORLD_SIZE=4", "MASTER_ADDR=a", "MASTER_PORT=1",
                      "GRADIENTFLOW_JOB_TOKEN=a secret"}
                      .get());
  EXPECT_NE(loaded.options.Validate().message().find("RANK is not"),
            std::string::npos);
  ASSERT_TRUE(loaded.Set("rank", "2").ok());
  ASSERT_TRUE(loaded.Set("size", "3").ok());
  EXPECT_TRUE(loaded.options.Validate().ok());
  EXPECT_EQ(loaded.options.rendezvous, "a:1");
}

TEST(LoadOptions, EachRestartOfALauncherIsARunOfItsOwn) {
  using Lines = std::vector<std::string>;
  const auto run = [](const Lines& lines) {
    return LoadOptions(Env(lines).get()).options.job_run;
  };
  const Lines torchrun = {"RANK=1", "WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=x"};
  Lines restarted = torchrun;
  restarted.push_back("TORCHELASTIC_RESTART_COUNT=1");
  Lines another = torchrun;
  another.back() = "TORCHELASTIC_RUN_ID=y";
  EXPECT_EQ(run(torchrun), run(torchrun));
  EXPECT_NE(run(torchrun), run(restarted));
  EXPECT_NE(run(torchrun), run(another));
  const Lines slurm = {"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0",
                       "SLURM_JOB_ID=7"};
  Lines requeued = slurm;
  requeued.push_back("SLURM_RESTART_COUNT=1");
  EXPECT_NE(run(slurm), run(requeued));
  // Ranks that are numbered by hand may be in jobs of their own.
  restarted.push_back("GRADIENTFLOW_RANK=0");
  restarted.push_back("GRADIENTFLOW_SIZE=2");
  EXPECT_EQ(run(restarted), "");
}

TEST(LoadOptions, TellsAllProblemsAtOnceAndKeepsTheRest) {
  const LoadedOptions loaded =
      LoadOptions(Env{"GRADIENTFLOW_SPARSITY=2", "GRADIENTFLOW_BUKET_BYTES=1",
                      "GRADIENTFLOW_OVERLAP=off"}
                      .get());
  ASSERT_EQ(loaded.problems.size(), 2U);
  EXPECT_EQ(loaded.problems[0],
            "GRADIENTFLOW_SPARSITY: expected a number from 0 to less than 1, "
            "got '2'");
  EXPECT_EQ(loaded.problems[1],
            "'GRADIENTFLOW_BUKET_BYTES' is no setting; did you mean "
            "GRADIENTFLOW_BUCKET_BYTES?");
  for (const std::string& problem : loaded.problems) {
    EXPECT_NE(loaded.status().message().find(problem), std::string::npos);
  }
  EXPECT_EQ(loaded.options.sparsity, 0);
  EXPECT_FALSE(loaded.options.overlap);
}

TEST(LoadOptions, VariablesHaveOneSpelling) {
  EXPECT_FALSE(
      LoadOptions(Env{"GRADIENTFLOW_sparsity=0.5"}.get()).status().ok());
  const LoadedOptions other =
      LoadOptions(Env{"gradientflow_sparsity=9", "GRADIENTFLOWX=1"}.get());
  EXPECT_TRUE(other.status().ok()) << "not ours";
  EXPECT_EQ(other.options.sparsity, 0);
}

TEST(LoadOptions, TheFirstOfTwoEntriesCountsAsForGetenv) {
  const LoadedOptions loaded = LoadOptions(
      Env{"GRADIENTFLOW_SPARSITY=0.5", "GRADIENTFLOW_SPARSITY=bad"}.get());
  EXPECT_TRUE(loaded.status().ok());
  EXPECT_EQ(loaded.options.sparsity, 0.5F);
}

TEST(LoadOptions, ValuesMayHoldEqualsSignsAndBeEmpty) {
  const LoadedOptions loaded = LoadOptions(
      Env{"GRADIENTFLOW_HOST_ID=a=b", "GRADIENTFLOW_TIMELINE=", "ODD"}.get());
  EXPECT_TRUE(loaded.status().ok());
  EXPECT_EQ(loaded.options.host_id, "a=b");
  EXPECT_EQ(SetBy(loaded, "timeline"), "environment");
}

TEST(OptionsFromEnv, GivesTheOptionsOrTheProblems) {
  const auto good = Options::FromEnv(
      Env{"GRADIENTFLOW_BUCKET_BYTES=16MB", "HOME=/root"}.get());
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value().bucket_bytes, std::size_t{16} << 20);
  const auto bad =
      Options::FromEnv(Env{"GRADIENTFLOW_BUCKET_BYTES=16XB"}.get());
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.status().message(),
            "GRADIENTFLOW_BUCKET_BYTES: expected a size, auto or inf, got "
            "'16XB'");
}

}  // namespace
}  // namespace gradientflow
