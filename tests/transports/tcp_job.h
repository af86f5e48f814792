#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/status.h"
#include "tests/transports/link_owner.h"
#include "transports/endpoint.h"
#include "transports/link.h"
#include "transports/tcp/create.h"

// Ranks that connect to each other by TCP.
namespace gradientflow::tcp_test {

using Links = Result<std::vector<std::unique_ptr<Link>>>;

inline const Bits256 kSecret = HmacSha256("a key", "");

struct Rank {
  TransportOptions options;
  std::unique_ptr<Endpoint> listener;
  testing::LinkOwner events;
  std::optional<Links> links;
  std::vector<std::unique_ptr<Link>> links_of_failure;
};

struct Job {
  explicit Job(int size, int lanes = 2, int family = 4) {
    for (int r = 0; r < size; ++r) {
      auto rank = std::make_unique<Rank>();
      rank->options.connections = lanes - 1;
      rank->options.socket_ifname = "lo";
      rank->options.ip_version = family;
      ranks.push_back(std::move(rank));
    }
  }
  bool Listen() {
    for (auto& rank : ranks) {
      auto listener = kTcpTransport.open(rank->options);
      if (!listener.ok()) return false;
      rank->listener = std::move(listener).value();
      addresses.push_back(rank->listener->address());
    }
    return true;
  }
  // See ConnectArgs for `look`.
  void Connect(int r, std::chrono::milliseconds patience,
               std::function<Status()> look = {}) {
    Rank& rank = *ranks[static_cast<std::size_t>(r)];
    const SteadyClock clock;
    ConnectArgs args;
    args.rank = r;
    args.size = static_cast<int>(ranks.size());
    args.addresses = addresses;
    args.secret = kSecret;
    args.deadline = clock.Now() + patience;
    args.clock = &clock;
    args.poller = rank.events.poller();
    args.events = &rank.events;
    args.links_of_failure = &rank.links_of_failure;
    args.look = std::move(look);
    rank.links = rank.listener->Connect(args);
  }
  void ConnectAll(const std::vector<int>& who,
                  std::chrono::milliseconds patience) {
    std::vector<std::thread> threads;
    threads.reserve(who.size());
    for (const int r : who) {
      threads.emplace_back([this, r, patience] { Connect(r, patience); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::vector<int> All() const {
    std::vector<int> all;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      all.push_back(static_cast<int>(r));
    }
    return all;
  }
  Link* link(int from, int to) {
    return ranks[static_cast<std::size_t>(from)]
        ->links->value()[static_cast<std::size_t>(to)]
        .get();
  }
  // Every rank sends its number to every other rank on each lane.
  void ExpectAllTalk() {
    const int size = static_cast<int>(ranks.size());
    static constexpr std::byte kNothing{};
    std::size_t expected = 0;
    for (int from = 0; from < size; ++from) {
      expected = 0;
      for (int to = 0; to < size; ++to) {
        Link* const out = link(from, to);
        ASSERT_EQ(out == nullptr, from == to);
        for (int lane = 0; from != to && lane < out->lanes(); ++lane) {
          OutMessage message;
          message.header.tag =
              static_cast<Tag>(from) * 100 + static_cast<Tag>(lane);
          message.payload.data = &kNothing;
          out->Send(lane, message);
          ++expected;
        }
      }
    }
    for (int turns = 0; turns < 1000; ++turns) {
      for (int r = 0; r < size; ++r) {
        for (int peer = 0; peer < size; ++peer) {
          if (peer != r) link(r, peer)->Poll();
        }
        ranks[static_cast<std::size_t>(r)]->events.poller()->Poll(
            std::chrono::milliseconds(0));
      }
    }
    for (const auto& rank : ranks) {
      ASSERT_EQ(rank->events.received.size(), expected);
      for (const testing::Received& message : rank->events.received) {
        EXPECT_EQ(message.header.tag % 100, static_cast<Tag>(message.lane));
      }
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<std::string> addresses;
};

}  // namespace gradientflow::tcp_test
