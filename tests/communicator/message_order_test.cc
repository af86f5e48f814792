#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/communicator/ranks.h"

// Messages with many tags between two ranks, over all lanes.
namespace gradientflow::testing {
namespace {

class Messages : public ::testing::TestWithParam<std::tuple<Over, int>> {};

struct Planned {
  std::uint32_t tag;
  std::size_t words;
};

// The same on both ranks: small and large messages, with tags on both sides of
// the limit up to which the sender numbers them.
std::vector<Planned> Plan(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Planned> plan(200);
  for (Planned& message : plan) {
    message.tag = static_cast<std::uint32_t>(253 + random() % 6);
    message.words = random() % 8 == 0 ? 20000 : random() % 40;
  }
  return plan;
}

TEST_P(Messages, OfOneTagArriveInOrder) {
  CommJob job;
  std::tie(job.over, job.size) = GetParam();
  job.options.connections = 3;
  RunRanks(job, [&](Communicator& comm) {
    if (comm.rank() > 1) return;
    const int peer = 1 - comm.rank();
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::vector<Planned> plan = Plan(round);
      std::vector<std::vector<std::uint64_t>> data(plan.size());
      std::vector<std::uint64_t> tickets;
      std::vector<std::size_t> order;
      if (comm.rank() == 0) {
        for (std::size_t i = 0; i < plan.size(); ++i) order.push_back(i);
      } else {  // Tag by tag.
        for (std::uint32_t tag = 258; tag >= 253; --tag) {
          for (std::size_t i = 0; i < plan.size(); ++i) {
            if (plan[i].tag == tag) order.push_back(i);
          }
        }
      }
      for (const std::size_t i : order) {
        const std::size_t bytes = plan[i].words * sizeof(std::uint64_t);
        const Communicator::Message message{0, peer, plan[i].tag};
        Result<std::uint64_t> ticket = Status(StatusCode::kInternal, "not run");
        if (comm.rank() == 0) {
          data[i].assign(plan[i].words, i);
          ticket = comm.StartSend(message, data[i].data(), bytes, {});
        } else {
          data[i].resize(plan[i].words);
          ticket = comm.StartRecv(message, data[i].data(), bytes, {});
        }
        ASSERT_TRUE(ticket.ok()) << ticket.status().ToString();
        tickets.push_back(ticket.value());
      }
      for (const std::uint64_t ticket : tickets) {
        const Status status = comm.Wait(ticket);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      for (std::size_t i = 0; i < plan.size(); ++i) {
        ASSERT_EQ(data[i], std::vector<std::uint64_t>(plan[i].words, i))
            << "message " << i << " of round " << round;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(TwoRanks, Messages,
                         ::testing::Combine(::testing::ValuesIn(kEverywhere),
                                            ::testing::Values(2)),
                         ParamName);

}  // namespace
}  // namespace gradientflow::testing
