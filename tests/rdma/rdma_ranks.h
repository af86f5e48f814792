#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradientflow/base/clock.h"
#include "gradientflow/base/secret.h"
#include "gradientflow/base/str_cat.h"
#include "tests/rdma/fake_verbs.h"
#include "tests/transports/link_conformance.h"
#include "tests/transports/link_owner.h"
#include "transports/endpoint.h"
#include "transports/rdma/rdma_endpoint.h"

// Ranks of this process that are linked by RDMA, on fake devices: each has a
// host, and an owner that plays the part of its fabric.
namespace gradientflow::testing {

class RdmaRanks {
 public:
  struct Rank {
    std::unique_ptr<Endpoint> endpoint;
    LinkOwner owner;
    Status opened;
    Status connected;
    std::vector<Status> unlinked;  // By rank.
    // Whether there is a link, by rank.
    std::vector<bool> linked;
    const Clock* clock = nullptr;  // Null: that of this machine.
    std::chrono::seconds patience{20};
  };

  // Each has so many devices: rank r's are fake<r>, fake<r + 10>...
  explicit RdmaRanks(int ranks, const FakeVerbsOptions& verbs = {},
                     int rails = 1)
      : options(OptionsOfTests()), fake(0, verbs), ranks_(ranks) {
    for (int r = 0; r < ranks; ++r) {
      FakeHost host;
      for (int i = 0; i < rails; ++i) {
        host.devices.push_back(UsualHost(r + 10 * i).devices.front());
      }
      fake.AddHost(host);
      all.push_back(std::make_unique<Rank>());
    }
    options.own["rdma_ports"] = std::to_string(rails);
  }

  Rank& operator[](int rank) { return *all[static_cast<std::size_t>(rank)]; }
  int size() const { return ranks_; }

  // Opens all endpoints. Returns whether all have opened.
  bool Open() {
    bool ok = true;
    for (int r = 0; r < ranks_; ++r) {
      TransportOptions own = options;
      own.rank = r;
      own.ranks = ranks_;
      auto opened = OpenRdma(own, fake.api(r));
      (*this)[r].opened = opened.status();
      if (opened.ok()) (*this)[r].endpoint = std::move(opened).value();
      ok &= opened.ok();
    }
    return ok;
  }
  // Connects all that have opened, each on its own thread. With `or_leave`,
  // pairs that cannot be linked are left out.
  void Connect(bool or_leave) {
    std::vector<std::string> addresses;
    for (const auto& rank : all) {
      addresses.push_back(rank->endpoint ? rank->endpoint->address() : "");
    }
    for (const auto& rank : all) {
      rank->unlinked.resize(all.size());
      rank->linked.resize(all.size());
    }
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks_; ++r) {
      if ((*this)[r].endpoint == nullptr) continue;
      threads.emplace_back([&, r] { ConnectOne(r, addresses, or_leave); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Ends all, as a job does. They may be opened again.
  void Leave() {
    for (auto& rank : all) rank = std::make_unique<Rank>();
  }
  bool Drive(const std::function<bool()>& until) {
    std::vector<LinkOwner*> owners;
    for (const auto& rank : all) owners.push_back(&rank->owner);
    return testing::Drive(owners, until);
  }
  // Sends `count` messages of random sizes between each two that are linked,
  // and expects them. Seeds from `seed` on.
  void ExpectTraffic(std::size_t count, std::uint64_t seed) {
    for (int r = 0; r < ranks_; ++r) {
      for (int p = 0; p < ranks_; ++p) {
        if (!(*this)[r].linked[static_cast<std::size_t>(p)]) continue;
        for (std::size_t i = 0; i < count; ++i) {
          (*this)[r].owner.Send(p, seed + i, (seed * 7919 + i * 104729) % 70000,
                                static_cast<int>(i % 9));
        }
      }
    }
    std::vector<std::size_t> expected(static_cast<std::size_t>(ranks_));
    for (int r = 0; r < ranks_; ++r) {
      for (int p = 0; p < ranks_; ++p) {
        if ((*this)[r].linked[static_cast<std::size_t>(p)]) {
          expected[static_cast<std::size_t>(p)] += count;
        }
      }
    }
    EXPECT_TRUE(Drive([&] {
      for (int r = 0; r < ranks_; ++r) {
        if ((*this)[r].owner.received.size() <
            expected[static_cast<std::size_t>(r)]) {
          return false;
        }
      }
      return true;
    }));
    for (int r = 0; r < ranks_; ++r) {
      EXPECT_EQ((*this)[r].owner.received.size(),
                expected[static_cast<std::size_t>(r)]);
      for (const Received& message : (*this)[r].owner.received) {
        EXPECT_TRUE(Intact(message));
      }
      (*this)[r].owner.received.clear();
      EXPECT_TRUE((*this)[r].owner.down.empty());
    }
  }

  TransportOptions options;
  FakeVerbs fake;  // Outlives the links.
  std::deque<std::unique_ptr<Rank>> all;

 private:
  void ConnectOne(int r, const std::vector<std::string>& addresses,
                  bool or_leave) {
    static const SteadyClock steady;
    Rank& rank = (*this)[r];
    const Clock& clock = rank.clock != nullptr ? *rank.clock : steady;
    std::vector<std::unique_ptr<Link>> left(all.size());
    ConnectArgs args;
    args.rank = r;
    args.size = ranks_;
    args.addresses = addresses;
    args.secret = HmacSha256("4711", "");
    args.clock = &clock;
    args.deadline = clock.Now() + rank.patience;
    args.poller = rank.owner.poller();
    args.events = &rank.owner;
    args.unlinked = or_leave ? &rank.unlinked : nullptr;
    args.links_of_failure = &left;
    auto links = rank.endpoint->Connect(args);
    rank.connected = links.status();
    if (links.ok()) left = std::move(links).value();
    for (std::size_t p = 0; p < left.size(); ++p) {
      rank.linked[p] = left[p] != nullptr;
    }
    rank.owner.Take(std::move(left));
  }

  const int ranks_;
};

}  // namespace gradientflow::testing
