#include "gradientflow/config/launcher.h"

#include <string>
#include <vector>

#include "gradientflow/config/text_values.h"
#include "gtest/gtest.h"
#include "tests/config/env.h"

namespace gradientflow {
namespace {

using Lines = std::vector<std::string>;

Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Launch Detect(const Lines& lines) { return DetectLauncher(Env(lines).get()); }

const Lines kTorchrun = {"RANK=5",
                         "WORLD_SIZE=8",
                         "LOCAL_RANK=1",
                         "MASTER_ADDR=node1",
                         "MASTER_PORT=29500",
                         "TORCHELASTIC_USE_AGENT_STORE=False",
                         "TORCHELASTIC_RUN_ID=e1f0"};
const Lines kOpenMpi = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
                        "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                        "PMIX_NAMESPACE=1308229633"};
const Lines kSlurm = {
    "SLURM_PROCID=3",         "SLURM_STEP_NUM_TASKS=16",
    "SLURM_NTASKS=99",        "SLURM_STEP_NUM_NODES=4",
    "SLURM_JOB_ID=4711",      "SLURM_STEP_NODELIST=node[03-05,9]",
    "SLURM_NODELIST=a[1-99]", "SLURM_STEP_ID=2"};

struct Case {
  const char* name;
  Lines lines;
  const char* who;
  int rank;
  int size;
  std::string rendezvous;
  const char* token;
};

std::string At(const std::string& host, const std::string& job) {
  return host + ":" + std::to_string(20000 + HashText(job) % 10000);
}

TEST(DetectLauncher, KnowsWhoStartedTheProcess) {
  const std::vector<Case> cases = {
      {"nobody", {"PATH=/bin"}, "", -1, -1, "", ""},
      {"torchrun", kTorchrun, "torchrun", 5, 8, "node1:29500", "e1f0"},
      {"torchrun whose agent has the port",
       {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=::1", "MASTER_PORT=40000",
        "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=none"},
       "torchrun",
       0,
       2,
       "[::1]:40001",
       ""},
      {"Open MPI 4 on one host", kOpenMpi, "Open MPI", 1, 4,
       At("127.0.0.1", "1308229633"), "1308229633"},
      {"Open MPI 4 with its random number",
       kOpenMpi + Lines{"OMPI_MCA_orte_precondition_transports=61fd-7692"},
       "Open MPI", 1, 4, At("127.0.0.1", "1308229633.61fd-7692"),
       "1308229633.61fd-7692"},
      {"Open MPI 4 without PMIx",
       {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_MCA_ess_base_jobid=77"},
       "Open MPI",
       0,
       2,
       At("127.0.0.1", "77"),
       "77"},
      {"Open MPI 5 on one host",
       {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=prterun-vm-99@1"},
       "Open MPI",
       0,
       2,
       At("127.0.0.1", "prterun-vm-99@1"),
       "prterun-vm-99@1"},
      {"Open MPI on two hosts, told where",
       {"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=9",
        "MASTER_ADDR=10.0.0.1", "MASTER_PORT=5000"},
       "Open MPI",
       3,
       4,
       "10.0.0.1:5000",
       "9"},
      {"Slurm", kSlurm, "Slurm", 3, 16, At("node03", "4711.2"), "4711.2"},
      {"Slurm without the step's own variables",
       {"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_NODELIST=a1,b2",
        "SLURM_JOB_ID=1", "SLURM_STEP_ID=0"},
       "Slurm",
       1,
       2,
       At("a1", "1.0"),
       "1.0"},
      {"Slurm on one node",
       {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_NODES=1",
        "SLURM_STEP_NODELIST=a1", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0"},
       "Slurm",
       1,
       2,
       At("127.0.0.1", "1.0"),
       "1.0"},
      {"a batch script, which is no rank",
       {"SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=1",
        "SLURM_NODELIST=a[1-4]"},
       "",
       -1,
       -1,
       "",
       ""},
      {"an interactive step, which is no rank",
       {"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_JOB_ID=1",
        "SLURM_STEP_ID=4294967290"},
       "",
       -1,
       -1,
       "",
       ""},
      {"mpirun inside a Slurm step", kSlurm + kOpenMpi, "Open MPI", 1, 4,
       At("127.0.0.1", "1308229633"), "1308229633"},
      {"torchrun inside a Slurm step", kSlurm + kTorchrun, "torchrun", 5, 8,
       "node1:29500", "e1f0"},
      {"srun with what job scripts export for torch",
       kSlurm + Lines{"WORLD_SIZE=16", "MASTER_ADDR=n9", "MASTER_PORT=1234"},
       "Slurm", 3, 16, "n9:1234", "4711.2"},
      {"empty variables",
       {"RANK=", "WORLD_SIZE=", "MASTER_ADDR="},
       "",
       -1,
       -1,
       "",
       ""},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const Launch launch = Detect(test.lines);
    EXPECT_EQ(launch.who, test.who);
    EXPECT_EQ(launch.rank, test.rank);
    EXPECT_EQ(launch.size, test.size);
    EXPECT_EQ(launch.identity_problem, "");
    EXPECT_EQ(launch.rendezvous, test.rendezvous);
    EXPECT_EQ(launch.job_token, test.token);
    EXPECT_EQ(launch.rendezvous.empty(), !launch.rendezvous_problem.empty());
  }
}

TEST(DetectLauncher, SaysWhichIdsOthersCanGuess) {
  EXPECT_FALSE(Detect({}).guessable);
  EXPECT_FALSE(Detect(kTorchrun).guessable) << "as strong as what was given";
  EXPECT_TRUE(Detect(kSlurm).guessable);
  EXPECT_TRUE(Detect(kOpenMpi).guessable);
  EXPECT_FALSE(
      Detect(kOpenMpi + Lines{"OMPI_MCA_orte_precondition_transports=61fd"})
          .guessable);
}

struct Bad {
  Lines lines;
  std::vector<std::string> told;  // All must appear in the problem.
};

TEST(DetectLauncher, TellsWhichVariablesContradictEachOther) {
  const std::vector<Bad> cases = {
      {{"RANK=1"}, {"RANK is set", "WORLD_SIZE is not"}},
      {{"WORLD_SIZE=2"}, {"WORLD_SIZE is set", "RANK is not"}},
      {{"RANK=two", "WORLD_SIZE=4"}, {"RANK='two'", "WORLD_SIZE='4'"}},
      {{"RANK=4", "WORLD_SIZE=4"}, {"RANK='4'"}},
      {{"RANK=-1", "WORLD_SIZE=4"}, {"RANK='-1'"}},
      {{"RANK=0", "WORLD_SIZE=0"}, {"WORLD_SIZE='0'"}},
      {{"RANK=0", "WORLD_SIZE=99999999999"}, {"WORLD_SIZE='99999999999'"}},
      {{"OMPI_COMM_WORLD_SIZE=4"}, {"OMPI_COMM_WORLD_RANK is not"}},
      {kSlurm + Lines{"WORLD_SIZE=8"},
       {"WORLD_SIZE='8'", "SLURM_STEP_NUM_TASKS=16"}},
      {kOpenMpi + Lines{"RANK=0"}, {"RANK='0'", "OMPI_COMM_WORLD_RANK=1"}},
  };
  for (const Bad& test : cases) {
    const Launch launch = Detect(test.lines);
    EXPECT_EQ(launch.rank, -1);
    EXPECT_EQ(launch.size, -1);
    for (const std::string& text : test.told) {
      EXPECT_NE(launch.identity_problem.find(text), std::string::npos)
          << text << " is not in: " << launch.identity_problem;
    }
    EXPECT_NE(launch.identity_problem.find("GRADIENTFLOW_RANK"),
              std::string::npos);
  }
}

TEST(DetectLauncher, TellsWhyThereIsNoRendezvous) {
  const std::vector<Bad> cases = {
      {{"RANK=0", "WORLD_SIZE=2"}, {"where to meet"}},
      {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a"}, {"MASTER_PORT is not"}},
      {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1"}, {"MASTER_ADDR is not"}},
      {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=b"},
       {"MASTER_PORT='b'"}},
      {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a b", "MASTER_PORT=1"},
       {"MASTER_ADDR='a b'"}},
      {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=65535",
        "TORCHELASTIC_USE_AGENT_STORE=True"},
       {"65534", "agent"}},
      {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=9"},
       {"several hosts", "2 of 4"}},
      {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_JOB_ID=1",
        "SLURM_STEP_NODELIST=node[3-"},
       {"SLURM_STEP_NODELIST='node[3-'"}},
      {{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0"},
       {"SLURM_JOB_ID"}},
  };
  for (const Bad& test : cases) {
    const Launch launch = Detect(test.lines);
    EXPECT_EQ(launch.rendezvous, "");
    EXPECT_EQ(launch.identity_problem, "");
    for (const std::string& text : test.told) {
      EXPECT_NE(launch.rendezvous_problem.find(text), std::string::npos)
          << text << " is not in: " << launch.rendezvous_problem;
    }
    EXPECT_NE(launch.rendezvous_problem.find("GRADIENTFLOW_RENDEZVOUS"),
              std::string::npos);
  }
}

TEST(DetectLauncher, MeetsOutsideTheEphemeralPorts) {
  for (int job = 0; job < 500; ++job) {
    const Launch launch =
        Detect({"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0",
                "SLURM_NODELIST=n", "SLURM_JOB_ID=" + std::to_string(job)});
    const auto port = ParseUnsigned(launch.rendezvous.substr(2));
    ASSERT_TRUE(port);
    EXPECT_GE(*port, 20000);
    EXPECT_LT(*port, 30000);
  }
}

TEST(DetectLauncher, TakesAnEnvironmentThatIsNotThere) {
  EXPECT_EQ(DetectLauncher(nullptr).who, "");
}

TEST(FirstSlurmHost, ExpandsTheFirstOfAList) {
  EXPECT_EQ(FirstSlurmHost("node7"), "node7");
  EXPECT_EQ(FirstSlurmHost("a1,b2"), "a1");
  EXPECT_EQ(FirstSlurmHost("node[03-05,9]"), "node03");
  EXPECT_EQ(FirstSlurmHost("node[9,03-05],login1"), "node9");
  EXPECT_EQ(FirstSlurmHost("rack[2-3]n[007-010]-ib.site,x"),
            "rack2n007-ib.site");
  EXPECT_EQ(FirstSlurmHost("node[5]"), "node5");
}

TEST(FirstSlurmHost, GivesNothingForDamagedLists) {
  for (const char* list : {"", ",", "node[", "node[3", "node[]", "node[x-y]",
                           "node[-3]", "no de", "node]3", "a:b"}) {
    EXPECT_EQ(FirstSlurmHost(list), "") << list;
  }
}

}  // namespace
}  // namespace gradientflow
