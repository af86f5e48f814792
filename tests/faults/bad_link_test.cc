#include "tests/faults/bad_link.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/communicator/inproc.h"
#include "gradientflow/communicator/transport.h"
#include "tests/faults/job.h"
#include "tests/faults/processes.h"
#include "transports/fabric.h"
#include "transports/inproc/create.h"
#include "transports/poller.h"

// Messages that are lost, late, cut or doubled end in an error or the right
// result, never in a wrong sum or a hang.
namespace gradientflow::faults {
namespace {

constexpr int kRanks = 3;

struct Ended {
  Status status;
  std::uint64_t wrong = 0;
  double seconds = 0;
};

class BadLinks : public ::testing::Test {
 protected:
  Ended RunRank(const std::shared_ptr<InprocGroup>& group, int rank,
                const Mischief& mischief) const {
    Ended ended;
    const std::int64_t begin = NowNs();
    ended.status = Train(group, rank, mischief, &ended.wrong);
    ended.seconds = static_cast<double>(NowNs() - begin) * 1e-9;
    return ended;
  }

  Status Train(const std::shared_ptr<InprocGroup>& group, int rank,
               const Mischief& mischief, std::uint64_t* wrong) const {
    Result<Transport> transport = BadTransport(group, rank, mischief);
    if (!transport.ok()) return transport.status();
    Options options = OptionsOf(job_, rank);
    const auto comm = OpenOver(std::move(transport).value(), options);
    if (!comm.ok()) return comm.status();
    auto session =
        GradientSession::Open(comm.value(), TensorsOf(job_), options);
    if (!session.ok()) return session.status();
    RankReport report;
    for (std::uint64_t step = 0; step < job_.steps; ++step) {
      Backward(job_, step, session.value().get(), &report);
      const Result<StepStats> stats = session.value()->FinishStep();
      if (!stats.ok()) return stats.status();
      *wrong += CountWrong(job_, step, *session.value());
    }
    return Status();
  }

  Result<Transport> BadTransport(const std::shared_ptr<InprocGroup>& group,
                                 int rank, const Mischief& mischief) const {
    Result<std::unique_ptr<Poller>> poller = Poller::Create();
    if (!poller.ok()) return poller.status();
    FabricOptions fabric;
    fabric.heartbeat_timeout = std::chrono::seconds(5);
    Transport transport;
    transport.fabric = std::make_unique<Fabric>(
        rank, kRanks, clock_, std::move(poller).value(), fabric);
    auto links = group->Connect(rank, &transport.fabric->poller(),
                                transport.fabric.get());
    if (!links.ok()) return links.status();
    for (int r = 0; r < kRanks; ++r) {
      std::unique_ptr<Link>& link = links.value()[r];
      if (link == nullptr) continue;
      const auto seed = static_cast<unsigned>(seed_ * 100 + rank * 10 + r);
      link = std::make_unique<BadLink>(std::move(link), mischief, seed);
    }
    transport.fabric->Connect(std::move(links).value());
    transport.keep_alive.push_back(group);
    transport.group.rank = rank;
    transport.group.size = kRanks;
    transport.group.topology.host = {0, 1, 2};
    return transport;
  }

  std::vector<Ended> Run(const Mischief& mischief) {
    ++seed_;
    job_.options.rendezvous = "127.0.0.1:1";  // Never looked up.
    job_.options.timeout_seconds = 1;
    job_.tensor_elements = {3001, 7, 20000, 1, 5003};
    job_.options.bucket_bytes = 0;
    job_.steps = 40;
    auto group = InprocGroup::Create(kRanks, {std::size_t{64} << 20});
    std::vector<Ended> ended(kRanks);
    if (!group.ok()) {
      ADD_FAILURE() << group.status().ToString();
      return ended;
    }
    std::vector<std::thread> ranks;
    for (int r = 0; r < kRanks; ++r) {
      ranks.emplace_back(
          [&, r] { ended[r] = RunRank(group.value(), r, mischief); });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Ended& end : ended) {
      EXPECT_EQ(end.wrong, 0U);
      EXPECT_LT(end.seconds, 20);
    }
    return ended;
  }

  SteadyClock clock_;
  JobConfig job_;
  int seed_ = 0;
};

TEST_F(BadLinks, DelayAndReorderingChangeNothing) {
  for (int round = 0; round < 5; ++round) {
    for (const Ended& end : Run({0, 0.3, 0, 0})) {
      EXPECT_TRUE(end.status.ok()) << end.status.ToString();
    }
  }
}

TEST_F(BadLinks, LossIsAStallThatIsReported) {
  for (int round = 0; round < 2; ++round) {
    for (const Ended& end : Run({0.1, 0, 0, 0})) {
      EXPECT_EQ(end.status.code(), StatusCode::kDeadlineExceeded)
          << end.status.ToString();
      EXPECT_NE(end.status.message().find("awaited: rank "), std::string::npos)
          << end.status.ToString();
    }
  }
}

TEST_F(BadLinks, TruncationIsAMismatchThatIsReported) {
  for (int round = 0; round < 10; ++round) {
    for (const Ended& end : Run({0, 0, 0.1, 0})) {
      EXPECT_EQ(end.status.code(), StatusCode::kInvalidArgument)
          << end.status.ToString();
      EXPECT_NE(end.status.message().find("bytes, rank "), std::string::npos)
          << end.status.ToString();
    }
  }
}

TEST_F(BadLinks, DuplicatesDoNoHarm) {
  for (int round = 0; round < 10; ++round) {
    for (const Ended& end : Run({0, 0, 0, 0.2})) {
      if (end.status.ok()) continue;
      EXPECT_NE(end.status.message().find("rank "), std::string::npos)
          << end.status.ToString();
    }
  }
}

TEST_F(BadLinks, EverythingAtOnceIsAnErrorOrRight) {
  for (int round = 0; round < 5; ++round) {
    Run({0.001, 0.1, 0.002, 0.02});
  }
}

}  // namespace
}  // namespace gradientflow::faults
