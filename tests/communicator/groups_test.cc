#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gradientflow/base/str_cat.h"
#include "tests/communicator/ranks.h"

// Groups of some of the ranks, with collectives of their own.
namespace gradientflow::testing {
namespace {

using Values = std::vector<double>;

// The contribution of the job's rank `rank` to call `call`: whole numbers, so
// that sums are exact in any order.
Values Contribution(int rank, int call, std::size_t count) {
  std::uint32_t random = static_cast<std::uint32_t>(rank * 7919 + call);
  Values values(count);
  for (double& value : values) {
    random = random * 1664525 + 1013904223;  // Numerical Recipes' "ranqd1".
    value = static_cast<int>(random >> 16) - 32768;
  }
  return values;
}

struct Members {
  GroupId id = 0;
  std::vector<int> ranks;  // The job's ranks.

  int PlaceOf(int rank) const {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  }
  Values Sum(int call, std::size_t count) const {
    Values sum(count, 0);
    for (const int rank : ranks) {
      const Values one = Contribution(rank, call, count);
      for (std::size_t i = 0; i < count; ++i) sum[i] += one[i];
    }
    return sum;
  }
};

CollectiveCall CallOf(const Members& group, CollectiveKind kind,
                      std::size_t count) {
  CollectiveCall call;
  call.kind = kind;
  call.group = group.id;
  call.count = count;
  call.dtype = call.wire = DType::kFloat64;
  return call;
}

// Overlapping groups, in odd orders, of one rank and of all ranks.
std::vector<Members> GroupsOf(int size) {
  std::vector<Members> groups;
  std::vector<int> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  groups.push_back({11, {all.rbegin(), all.rend()}});
  groups.push_back({0x7FFFFFFF, {size - 1}});
  Members even{5, {}};
  Members odd{6, {}};
  for (const int rank : all) {
    (rank % 2 == 0 ? even : odd).ranks.push_back(rank);
  }
  groups.push_back(even);
  if (!odd.ranks.empty()) groups.push_back(odd);
  if (size > 2) groups.push_back({7, {size - 1, 0, size / 2}});
  return groups;
}

class Groups : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  static CommJob MakeJob() {
    CommJob job;
    job.over = std::get<0>(GetParam());
    job.size = std::get<1>(GetParam());
    job.options.segment_bytes = std::size_t{8} << 10;
    return job;
  }
};

void CheckReductions(Communicator& comm, const Members& group, std::size_t n) {
  const int me = group.PlaceOf(comm.rank());
  const auto size = group.ranks.size();
  Values data = Contribution(comm.rank(), 1, n);
  CollectiveCall call = CallOf(group, CollectiveKind::kAllreduce, n);
  call.output = data.data();
  ASSERT_TRUE(comm.Run(call).ok());
  EXPECT_EQ(data, group.Sum(1, n));

  const Values input = Contribution(comm.rank(), 2, n);
  const int root = static_cast<int>(size) - 1;
  Values output(n, -1);
  call = CallOf(group, CollectiveKind::kReduce, n);
  call.input = input.data();
  call.output = output.data();
  call.root = root;
  ASSERT_TRUE(comm.Run(call).ok());
  if (me == root) {
    EXPECT_EQ(output, group.Sum(2, n));
  }

  const Values blocks = Contribution(comm.rank(), 3, n * size);
  call = CallOf(group, CollectiveKind::kReduceScatter, n);
  call.input = blocks.data();
  call.output = output.data();
  ASSERT_TRUE(comm.Run(call).ok());
  const Values whole = group.Sum(3, n * size);
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(n) * me;
  EXPECT_EQ(output, Values(begin, begin + static_cast<std::ptrdiff_t>(n)));
}

void CheckMoves(Communicator& comm, const Members& group, std::size_t n) {
  const int me = group.PlaceOf(comm.rank());
  const auto size = group.ranks.size();
  for (int root = 0; root < static_cast<int>(size); ++root) {
    Values data = Contribution(comm.rank(), 4, n);
    CollectiveCall call = CallOf(group, CollectiveKind::kBroadcast, n);
    call.output = data.data();
    call.root = root;
    ASSERT_TRUE(comm.Run(call).ok());
    EXPECT_EQ(data, Contribution(group.ranks[root], 4, n));
  }

  const Values mine = Contribution(comm.rank(), 5, n);
  Values all(n * size);
  CollectiveCall call = CallOf(group, CollectiveKind::kAllgather, n);
  call.input = mine.data();
  call.output = all.data();
  ASSERT_TRUE(comm.Run(call).ok());
  Values expected;
  for (const int rank : group.ranks) {
    const Values one = Contribution(rank, 5, n);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  EXPECT_EQ(all, expected);

  // Rank i sends rank j i + j + n elements.
  std::vector<std::size_t> counts(size);
  for (std::size_t j = 0; j < size; ++j) counts[j] = me + j + n;
  const Values out = Contribution(
      comm.rank(), 6,
      std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  Values in(out.size());
  call = CallOf(group, CollectiveKind::kAllToAll, 0);
  call.input = out.data();
  call.output = in.data();
  call.send_counts = call.recv_counts = counts;
  ASSERT_TRUE(comm.Run(call).ok());
  std::size_t at = 0;
  for (std::size_t i = 0; i < size; ++i) {
    std::size_t total = 0;
    std::size_t before = 0;
    for (std::size_t j = 0; j < size; ++j) {
      if (static_cast<int>(j) < me) before += i + j + n;
      total += i + j + n;
    }
    const Values theirs = Contribution(group.ranks[i], 6, total);
    for (std::size_t k = 0; k < i + me + n; ++k) {
      ASSERT_EQ(in[at++], theirs[before + k]);
    }
  }

  call = CallOf(group, CollectiveKind::kBarrier, 0);
  const Status last = comm.Run(call);
  ASSERT_TRUE(last.ok()) << last.ToString();
}

TEST_P(Groups, HaveCollectivesOfTheirOwn) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    const std::vector<Members> groups = GroupsOf(comm.size());
    for (const Members& group : groups) {
      if (group.PlaceOf(comm.rank()) < 0) continue;
      ASSERT_TRUE(comm.OpenGroup(group.id, group.ranks).ok());
    }
    for (const std::size_t n : {0, 1, 31, 5003}) {
      for (const Members& group : groups) {
        if (group.PlaceOf(comm.rank()) < 0) continue;
        CheckReductions(comm, group, n);
        CheckMoves(comm, group, n);
      }
    }
    for (const Members& group : groups) {
      if (group.PlaceOf(comm.rank()) < 0) continue;
      EXPECT_TRUE(comm.CloseGroup(group.id).ok());
    }
  });
}

TEST_P(Groups, DoNotWaitForEachOther) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    // All calls are under way at once, and each rank starts them in another
    // order.
    const int calls = 6;
    std::vector<Members> groups = GroupsOf(comm.size());
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    for (const Members& group : groups) {
      if (group.PlaceOf(comm.rank()) < 0) continue;
      ASSERT_TRUE(comm.OpenGroup(group.id, group.ranks).ok());
    }
    std::shuffle(groups.begin(), groups.end(), random);
    struct Started {
      const Members* group;
      int call;
      std::uint64_t ticket;
      Values data;
    };
    std::vector<Started> started;
    started.reserve(groups.size() * calls);
    for (const Members& group : groups) {
      if (group.PlaceOf(comm.rank()) < 0) continue;
      for (int c = 0; c < calls; ++c) {
        const auto n = static_cast<std::size_t>(7503 / (c + 1));
        started.push_back({&group, c, 0, Contribution(comm.rank(), c, n)});
        CollectiveCall call = CallOf(group, CollectiveKind::kAllreduce, n);
        call.output = started.back().data.data();
        const Result<std::uint64_t> ticket = comm.Start(call);
        ASSERT_TRUE(ticket.ok());
        started.back().ticket = ticket.value();
      }
    }
    std::shuffle(started.begin(), started.end(), random);
    for (const Started& one : started) {
      ASSERT_TRUE(comm.Wait(one.ticket).ok());
      EXPECT_EQ(one.data, one.group->Sum(one.call, one.data.size()));
    }
  });
}

TEST_P(Groups, ComeAndGo) {
  RunRanks(MakeJob(), [](Communicator& comm) {
    for (GroupId id = 1; id <= 200; ++id) {
      std::vector<Members> groups = GroupsOf(comm.size());
      Members& group = groups[id % groups.size()];
      group.id = id;
      if (group.PlaceOf(comm.rank()) < 0) continue;
      ASSERT_TRUE(comm.OpenGroup(id, group.ranks).ok());
      Values data = Contribution(comm.rank(), 9, id);
      CollectiveCall call = CallOf(group, CollectiveKind::kAllreduce, id);
      call.output = data.data();
      ASSERT_TRUE(comm.Run(call).ok());
      EXPECT_EQ(data, group.Sum(9, id));
      ASSERT_TRUE(comm.CloseGroup(id).ok());
      EXPECT_EQ(comm.CloseGroup(id).code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(comm.Run(call).code(), StatusCode::kInvalidArgument);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(InProcess, Groups,
                         ::testing::Combine(::testing::Values(Over::kMemory,
                                                              Over::kMessages,
                                                              Over::kDevices),
                                            ::testing::Values(1, 2, 3, 5, 7)),
                         ParamName);
INSTANTIATE_TEST_SUITE_P(
    Joined, Groups,
    ::testing::Combine(::testing::Values(Over::kTcp, Over::kMixed, Over::kRdma),
                       ::testing::Values(3, 5)),
    ParamName);
INSTANTIATE_TEST_SUITE_P(WhenNeeded, Groups,
                         ::testing::Combine(::testing::Values(Over::kNeeded),
                                            ::testing::Values(7, 8)),
                         ParamName);

TEST(GroupErrors, NameWhatIsWrongWithTheRanks) {
  CommJob job;
  job.size = 3;
  RunRanks(job, [](Communicator& comm) {
    const int me = comm.rank();
    const int other = (me + 1) % 3;
    const struct {
      GroupId id;
      std::vector<int> ranks;
      std::string words;
    } cases[] = {
        {0, {0, 1, 2}, "open already"},
        {1, {me, 3}, "rank 3 at place 1, expected 0 to 2"},
        {1, {-1, me}, "rank -1 at place 0"},
        {1, {me, other, me}, StrCat("rank ", me, " at place 2")},
        {1, {other}, StrCat("rank ", me, ", which opens it")},
        {1, {}, "not among its 0 ranks"},
    };
    for (const auto& wrong : cases) {
      const Status status = comm.OpenGroup(wrong.id, wrong.ranks);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(wrong.words), std::string::npos)
          << status.message();
    }
    ASSERT_TRUE(comm.OpenGroup(1, {me}).ok());
    EXPECT_EQ(comm.OpenGroup(1, {me}).code(), StatusCode::kInvalidArgument);
  });
}

// Two ranks that list the members in another order would mix up their blocks.
TEST(GroupErrors, MembersInAnotherOrderEndTheJob) {
  CommJob job;
  job.size = 2;
  job.over = Over::kMessages;
  RunRanks(job, [](Communicator& comm) {
    const std::vector<int> ranks =
        comm.rank() == 0 ? std::vector{0, 1} : std::vector{1, 0};
    ASSERT_TRUE(comm.OpenGroup(4, ranks).ok());
    double value = 1;
    CollectiveCall call;
    call.group = 4;
    call.output = &value;
    call.count = 1;
    call.dtype = call.wire = DType::kFloat64;
    EXPECT_FALSE(comm.Run(call).ok());
    EXPECT_FALSE(comm.Check().ok());
  });
}

// Progress in another group does not keep a call waiting for ever.
TEST(GroupErrors, TheTimeOutIsOfEachGroupByItself) {
  CommJob job;
  job.size = 3;
  job.options.timeout_seconds = 1;
  RunRanks(job, [](Communicator& comm) {
    ASSERT_TRUE(comm.OpenGroup(8, {0, 1, 2}).ok());
    double value = 1;
    CollectiveCall call;
    call.output = &value;
    call.count = 1;
    call.dtype = call.wire = DType::kFloat64;
    call.group = 8;
    double alone = 1;
    CollectiveCall awaited = call;
    awaited.output = &alone;
    awaited.group = 0;
    // Rank 2 never comes to that call.
    if (comm.rank() != 2) {
      ASSERT_TRUE(comm.Start(awaited).ok());
    }
    Status status;
    const auto began = std::chrono::steady_clock::now();
    while (status.ok() &&
           std::chrono::steady_clock::now() - began < std::chrono::minutes(1)) {
      status = comm.Run(call);
    }
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(status.message().find("has waited 1"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("rank 2 ("), std::string::npos)
        << status.message();
  });
}

TEST(GroupErrors, ClosingWithCallsInFlightEndsTheJob) {
  CommJob job;
  job.size = 2;
  RunRanks(job, [](Communicator& comm) {
    ASSERT_TRUE(comm.OpenGroup(4, {0, 1}).ok());
    double value = 1;
    CollectiveCall call;
    call.output = &value;
    call.count = 1;
    call.dtype = call.wire = DType::kFloat64;
    if (comm.rank() == 1) {
      const Status status = comm.Run(call);  // Fails with the reason.
      EXPECT_NE(status.message().find("group 4 is closed with 1 calls"),
                std::string::npos)
          << status.message();
      return;
    }
    call.group = 4;
    const Result<std::uint64_t> ticket = comm.Start(call);
    ASSERT_TRUE(ticket.ok());
    EXPECT_EQ(comm.CloseGroup(4).code(), StatusCode::kFailedPrecondition);
    EXPECT_FALSE(comm.Wait(ticket.value()).ok());
  });
}

}  // namespace
}  // namespace gradientflow::testing
